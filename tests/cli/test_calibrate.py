"""`ksim gpu calibrate` and `ksim validate kernels`, as a user meets them."""

import json
from importlib.util import find_spec

import pytest

from ksim.calibration.calibrate import digest
from ksim.oracles.efficiency.profiled import Profile
from tests.calibration.samples import EXTRACT, LOG
from tests.cli.command import SCENARIO, ksim, ksim_process

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
NORMS = "t,h,gpu,latency_us\n" + "".join(
    f"{t},{h},{{gpu}},{2 + t * h / 1e6}\n" for h in (1024, 2048, 4096, 8192) for t in (1, 16, 256, 512))
FIT = ("gpu", "calibrate")


@pytest.fixture
def sweep(tmp_path):
    """A sweep of one family, a log of collectives beside it, and a file that is neither."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "kernels_rms_norm.csv").write_text(NORMS.format(gpu="NVIDIA H200"), encoding="utf-8")
    (folder / "nccl.log").write_text(LOG.format(tool="all_reduce_perf", redop="sum"), encoding="utf-8")
    (folder / "requests.csv").write_text("request,ttft\n1,2\n", encoding="utf-8")
    return folder


def test_from_a_sweep_to_a_run(sweep, tmp_path):
    out = ksim(*FIT, "sweep", "--json", "c.json", folder=tmp_path)
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["profile"] == "h200.npz" and {"family", "points", "error_share"} <= {*content["families"][0]}
    for words in ("calibration of H200 SXM", "rms_norm", "requests.csv", "3 rows of all_reduce were read, but a "
                  "profile holds kernels only", "ksim/data/transports"):
        assert words in out
    assert out.splitlines()[-1] == ('written to h200.npz; use it with --oracle h200.npz, or in a scenario: [oracle] '
                                    'with name = "measured" and path = "h200.npz"')
    header = Profile.load(tmp_path / "h200.npz").header
    assert header["command"] == "ksim gpu calibrate sweep -o h200.npz"
    assert header["fitted_to"]["kernels_rms_norm.csv"] == digest(sweep / "kernels_rms_norm.csv")
    assert "measured" in ksim("step", "--model", "qwen3-0.6b", "--gpu", "h200", "--decode", "4x100", "--oracle",
                              "h200.npz", folder=tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "s.toml").write_text('oracle = {name = "measured", path = "../h200.npz"}\n' + SCENARIO)
    ksim("run", "runs/s.toml", "--quiet", folder=sweep.parent)  # a path is taken from the scenario's folder
    error = ksim("run", "runs/s.toml", "--set", "gpu=b200", folder=tmp_path, code=1)
    assert "is a profile of H200 SXM, not of B200" in error


def test_validating_says_the_mean_last(tmp_path):
    out = ksim("validate", "kernels", EXTRACT / "kernels_rms_norm.parquet", "--gpu", "h200", "--oracle", "waves",
               "--json", "out.json", folder=tmp_path)
    said = json.loads((tmp_path / "out.json").read_text())
    assert out.splitlines()[-1] == f"mean over families: {said['mean']:.2f} %"
    assert f"rms_norm: {said['mean']:.2f} % of {said['families']['rms_norm']['points']} points" in out


@pytest.mark.parametrize(("words", "message"), [
    ((*FIT, "none"), "none: No such file or directory"),
    ((*FIT, "s.toml"), "s.toml"),
    ((*FIT, "sweep", "--gpu", "h2000"), "no gpu named 'h2000'; did you mean 'h200'"),
    ((*FIT, "sweep", "--gpu", "b200"), "--gpu: is b200, but the files are of h200"),
    ((*FIT, "sweep", "other.csv"), "--gpu: is needed: the files are of a100-80g, h200; name one of them"),
    ((*FIT, "sweep/nccl.log"), "has no family with enough points to calibrate"),
    ((*FIT, "sweep", "-o", "profile.bin"), "profile.bin: is not a profile's name; choose one that ends in .npz"),
    ((*FIT, "sweep", "-o", "s.toml/h200.npz"), "s.toml/h200.npz: cannot be written"),
    (("step", "--model", "llama-3.2-1b", "--gpu", "h200", "--decode", "1x1", "--oracle", "none.npz"), "none.npz"),
    (("step", "--model", "llama-3.2-1b", "--gpu", "h200", "--decode", "1x1", "--oracle", "bad.npz"), "is no profile"),
])
def test_bad_input_to_calibration_is_one_clear_line(words, message, sweep, tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    lines = NORMS.format(gpu="a100_sxm").splitlines()
    (tmp_path / "other.csv").write_text(f"family,{lines[0]}\n" + "".join(f"rms_norm,{line}\n" for line in lines[1:]))
    error = ksim(*words, folder=tmp_path, code=1)
    assert message in error and error.startswith("ksim: ") and error.count("\n") == 1
    assert not [*tmp_path.glob("**/*.part")] and not (tmp_path / "h200.npz").exists()


def test_a_missing_library_is_named_with_the_way_to_get_it(sweep, tmp_path):
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("raise ImportError")
    assert "fitting models needs scikit-learn and scipy: pip install 'ksim-llm[fit]'" in ksim_process(
        *FIT, "sweep", folder=tmp_path, code=1)
