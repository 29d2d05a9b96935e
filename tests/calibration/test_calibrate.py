"""From a sweep to a profile: errors no worse than they were, and all that was left out is said."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from ksim.calibration.calibrate import ENOUGH, CalibratedFamily, calibrate, digest, digests, ingest, save
from ksim.calibration.checks import check, gpu_of
from ksim.calibration.dataset import join
from ksim.calibration.fitting import fit, held_out, select
from ksim.calibration.reading import read
from ksim.calibration.recipes import FIT_SPECS
from ksim.foundation.errors import ConfigError, DataError
from ksim.oracles.efficiency.profiled import Profile
from tests.calibration.samples import EXTRACT
from tests.calibration.toys import H200, dataset, measured

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
SWEEP = Path(__file__).parents[3] / "shared" / "data" / "h200"
#: Mean absolute errors in per cent: of the extract, a few dozen points a family, and of the whole sweep.
EXTRACTED = {"gemm/bf16": 8.0, "rms_norm": 7.0}
WHOLE = {"rms_norm": {"": 4.2}, "fused_add_rms_norm": {"": 4.2}, "silu_mul": {"": 4.2}, "rope": {"": 4.2},
         "kv_write": {"": 4.2}, "grouped_gemm/bf16": {"": 6.0}, "gemm/bf16": {"grid": 4.5, "sweep": 5.5},
         "attention/bf16": {"decode": 3.5, "prefill": 4.5, "mixed": 6.5}}
#: Of courses that take long: one point in so many is taken, in so many folds.
THIN = {"gemm/bf16": (4, 2), "attention/bf16": (1, 2)}


@pytest.fixture(scope="module")
def fitted():
    """Two families of the extract; the others of `WHOLE` are fitted from the whole sweep."""
    return calibrate([rows for rows in read(EXTRACT) if rows.family in ("gemm", "rms_norm") and rows.dtype == "bf16"],
                     H200)


def test_every_family_of_the_extract_is_fitted(fitted):
    assert [part.name for part in fitted.parts] == [*EXTRACTED]
    for part in fitted.parts:
        assert 0 < 100 * part.error < EXTRACTED[part.name] and abs(part.bias) < part.error
        assert part.efficiency.error == pytest.approx(part.error) and part.efficiency.rows == part.points


def test_errors_at_check_points_are_reported_separately(fitted):
    gemm = fitted.parts[0]
    ((tag, points, error),) = gemm.checks
    assert (tag, points) == ("random", 12) and 0 < 100 * error < 10 and gemm.points == 45
    assert [points for points, _ in gemm.curve] == [11, 22]


def test_enough_is_the_fewest_points_that_do_nearly_as_well(fitted):
    base = {"name": "a", "efficiency": fitted.parts[0].efficiency, "points": 100, "error": 0.1, "bias": 0, "checks": ()}
    worse, well = (12, 0.1 * ENOUGH + 0.01), (25, 0.1 * ENOUGH - 0.01)
    assert CalibratedFamily(curve=(worse, well, (50, 0.1)), **base).enough == 25
    assert CalibratedFamily(curve=(worse,), **base).enough == 100


@pytest.mark.parametrize("name", WHOLE)
def test_errors_of_the_whole_sweep_stay_below_their_limits(name):
    if not SWEEP.is_dir():
        pytest.skip(f"the sweep is not at {SWEEP}")
    spec = next(spec for spec in FIT_SPECS if spec.name == name)
    (part,) = (part for part in read(SWEEP / f"kernels_{spec.measures}.parquet", gpu="h200") if spec.takes(part))
    rows = check(part, H200).kept
    selected = select(spec, [rows], H200)
    points, tags = join(selected.core), selected.rows[0].tags
    every, folds = THIN.get(name, (1, 5))
    chosen = points.checks | (np.arange(len(points)) % every == 0)
    points, tags = points.take(chosen), tags[chosen]
    kept, seconds = held_out(spec, spec.sweep, points, swept=True, folds=folds)
    predicted = fit(spec, spec.sweep, [points], swept=True).predict(points)
    predicted[~points.checks] = seconds
    assert len(kept) == (~points.checks).sum()
    for tag, most in WHOLE[name].items():
        of = tags == tag if tag else np.ones(len(tags), dtype=bool)
        assert 100 * np.abs(predicted / points.seconds - 1)[of].mean() < most, tag


@pytest.fixture
def curveless(monkeypatch):
    """No learning curves, for the sake of time."""
    monkeypatch.setattr("ksim.calibration.calibrate.CURVE", ())


def norms(count=40, **more):
    """A kernel that moves memory at 80 % of the bandwidth."""
    tokens = np.tile([1, 16, 64, 256, 1024, 4096, 8192, 16384], 5)[:count]
    widths = np.repeat([1024, 2048, 4096, 8192, 16384], 8)[:count]
    seconds = 2e-6 + 4.0 * tokens * widths / (0.8 * H200.bandwidth)
    return measured("rms_norm", {"t": tokens, "h": widths}, seconds, **more)


def test_measurements_of_no_use_are_reported(curveless):
    sums = evolve(norms(12), family="all_reduce", columns={"gpus": np.full(12, 8), "bytes": np.full(12, 1024)})
    scaled = evolve(norms(12), family="gemm", dtype="fp32")
    few = evolve(norms(4), family="silu_mul", columns={"t": np.arange(4) + 1, "inter": np.full(4, 64)})
    calibration = calibrate([norms(), sums, scaled, few], H200)
    assert [part.name for part in calibration.parts] == ["rms_norm"]
    remarks = "\n".join(calibration.remarks)
    for words in ("12 rows of all_reduce were read, but a profile holds kernels only", "ksim/data/transports",
                  "12 rows of gemm fp32 were read", "4 usable points of silu_mul bf16 cannot calibrate it"):
        assert words in remarks
    with pytest.raises(DataError, match="has no family with enough points to calibrate; .* 4 usable points"):
        calibrate([few], H200)


def test_points_of_a_single_group_are_held_out_one_by_one(curveless):
    calibration = calibrate([norms(8)], H200)
    assert "rms_norm: all points are of one group" in calibration.remarks[0] and calibration.parts[0].points == 8
    alone = dataset(np.arange(5.0) + 1, [3] * 5)
    assert len({*alone.divisible().groups.tolist()}) == 5
    apart = dataset(np.arange(5.0) + 1, [3, 3, 3, 4, 4])
    assert apart.divisible() is apart


def test_copies_in_another_file_are_held_out_together(curveless):
    """Times that nothing explains but memory: reading them twice must not make them look explained."""
    noise = np.exp(np.random.default_rng(0).normal(0, 0.3, 40))
    first = evolve(norms(), seconds=norms().seconds * noise)
    copy = evolve(first, source=evolve(first.source, file="again.csv"))
    once, twice = (calibrate(files, H200).parts[0] for files in ([first], [first, copy]))
    assert twice.points == 2 * once.points and twice.error == pytest.approx(once.error, rel=0.2)


def test_tables_are_not_mixed_with_a_sweep(curveless):
    table = norms(file="table.parquet", backend="vllm")
    calibration = calibrate([norms(), table], H200)
    assert calibration.parts[0].points == 40
    assert any("table.parquet: 40 rows of rms_norm bf16 are of a table" in remark for remark in calibration.remarks)


TABLE = "t,h,gpu,latency_us\n" + "".join(f"{t},4096,{{gpu}},{2 + t / 400}\n" for t in range(1, 30))


def test_files_of_several_gpus_need_the_option_gpu(write, tmp_path):
    write(TABLE.format(gpu="NVIDIA H200"), "kernels_rms_norm.csv")
    (tmp_path / "b").mkdir()
    write(TABLE.format(gpu="a100_sxm"), "b/kernels_rms_norm.csv")
    with pytest.raises(ConfigError, match="--gpu: is needed: the files are of a100-80g, h200; name one of them"):
        ingest([tmp_path])
    assert {rows.gpu for rows in ingest([tmp_path], "h200").measured} == {"h200"}
    assert ingest([tmp_path], "NVIDIA H200").called == "h200"
    assert ingest([tmp_path / "b"]).called == "a100-80g"
    with pytest.raises(ConfigError, match="--gpu: is b200, but the files are of a100-80g, h200"):
        ingest([tmp_path], "b200")
    with pytest.raises(ConfigError, match="--gpu: is b200, but the files are of h200"):
        ingest([tmp_path / "kernels_rms_norm.csv"], "b200")


def test_a_device_that_the_catalogue_lacks_is_taken_for_the_named_gpu(write, tmp_path):
    path = write(TABLE.format(gpu="prototype"), "kernels_rms_norm.csv")
    with pytest.raises(DataError, match="are of 'prototype', which the catalogue lacks"):
        ingest([path])
    assert ingest([path], "h200").gpu.name == "H200 SXM" and len(ingest([path], "h200").measured) == 1


def test_copies_of_a_file_are_read_once(write, tmp_path):
    text = TABLE.format(gpu="h200")
    path = write(text, "kernels_rms_norm.csv")
    (tmp_path / "b").mkdir()
    write(text, "b/kernels_rms_norm.csv")
    write("request,ttft\n1,2\n", "requests.csv")
    ingested = ingest([tmp_path, path])
    assert len(ingested.measured) == 1 and {*digests(ingested.measured).values()} == {digest(path)}
    assert any("is the same as" in remark for remark in ingested.remarks)
    assert any("requests.csv" in remark for remark in ingested.remarks)


def test_a_profile_names_its_command_and_the_digests_of_its_files(fitted, tmp_path):
    files = digests(read(EXTRACT))
    save(tmp_path / "new" / "mine.npz", fitted, "ksim calibrate x", files)
    profile = Profile.load(tmp_path / "new" / "mine.npz")
    assert [*profile] == [*EXTRACTED] and profile.gpu == gpu_of(read(EXTRACT)[0]).name
    assert profile.header["fitted_to"] == files and profile.header["command"] == "ksim calibrate x"
    assert files["kernels_gemm.parquet"] == digest(EXTRACT / "kernels_gemm.parquet")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("disk full")])
def test_a_failure_leaves_the_old_profile_in_place(fitted, tmp_path, monkeypatch, stop):
    path = tmp_path / "mine.npz"
    path.write_bytes(b"before")

    def interrupted(part, *_, **__):
        part.write_bytes(b"half")
        raise stop

    monkeypatch.setattr("ksim.oracles.efficiency.profiled.save", interrupted)
    with pytest.raises((KeyboardInterrupt, ConfigError)):
        save(path, fitted, "", {})
    assert [file.name for file in tmp_path.iterdir()] == ["mine.npz"] and path.read_bytes() == b"before"
