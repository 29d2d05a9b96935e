"""The runner with a device that plays back recorded times: what is timed, written, resumed and left out."""

from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration import sweep as timing
from ksim.calibration.checks import check, gpu_of
from ksim.calibration.measurements import MISSING
from ksim.calibration.reading import read
from ksim.calibration.reading.sweep import points, write_points
from ksim.calibration.runner import __main__ as command
from ksim.calibration.runner.device import LAUNCHES, MeasurementPoint, Unmeasurable, expert_choices, expert_loads
from ksim.calibration.sweep import run
from ksim.foundation.errors import ConfigError
from tests.calibration.samples import EXTRACT

RECORDED = {(part.family, part.dtype, part.describe(i)): part.seconds[i]
            for part in read(EXTRACT) for i in range(len(part))}
FAMILIES = ("rms_norm", "gemm", "attention", "moe")
POINTS = [part for family in FAMILIES for part in points(EXTRACT / f"kernels_{family}.parquet")]


class Playback:
    """A GPU that takes the times of the extract; what *fails* says is not measured, and *stop* interrupts a sweep."""

    l2 = 50e6

    def __init__(self, gpu: str = "NVIDIA H200", fails: str = "", stop: int | None = None):
        self.gpu, self.fails, self.stop = gpu, fails, stop
        self.prepared: list[tuple[MeasurementPoint, int]] = []
        self.captured: list[int] = []
        self.released = 0

    def about(self):
        return {"gpu": self.gpu, "sms": 132.0, "torch": "2.11.0", "cuda": "13.0", "vllm": "0.22.0", "driver": "580"}

    def prepare(self, point, copies):
        if len(self.prepared) == self.stop:
            raise KeyboardInterrupt
        self.prepared.append((point, copies))
        if point.family == self.fails:
            raise Unmeasurable("no such kernel here")
        part = next(part for part in POINTS if (part.family, part.dtype) == (point.family, point.dtype))
        names = [name for name, column in part.columns.items() if name in point.shape]
        words = [f"{name}={point.shape[name]}" for name in names if point.shape[name] != MISSING]
        if len(point.qlens):
            words.append(f"{len(point.qlens)} sequences, {point.qlens.sum()} new tokens, "
                         f"{point.kvlens.sum()} in the cache")
        self.seconds = RECORDED[point.family, point.dtype, " ".join(words)]
        return lambda i: None

    def capture(self, launch, launches) -> Callable[[], float]:
        self.captured.append(launches)
        noise = iter([1.0, 1.5, 0.99, 1.0, 1.0, 1.3, 1.01] if launches > timing.PILOT else [1.0] * 99)
        return lambda: self.seconds * launches * next(noise)

    def release(self):
        self.released += 1


def norms():
    return [part for part in POINTS if part.family == "rms_norm"]


def test_a_sweep_is_written_as_it_was_recorded(tmp_path):
    device = Playback()
    written = run(POINTS, tmp_path, device, lambda line: None)
    assert [path.name for path in written] == [f"kernels_{name}.parquet" for name in FAMILIES]
    for measured in read(tmp_path):
        part = check(measured, gpu_of(measured)).kept
        assert part.gpu == "h200" and part.source.version == "0.22.0"
        for i in range(len(part) if part.family != "moe" else 0):  # whose loads were of other choices of experts
            assert part.seconds[i] == pytest.approx(RECORDED[part.family, part.dtype, part.describe(i)], abs=1e-9)
    assert device.released == len(device.prepared) == sum(map(len, POINTS))
    misc = pq.read_table(tmp_path / "kernels_misc.parquet").to_pylist()
    assert misc == [{"family": "meta", **device.about()}]


def test_the_median_of_replays_counts_and_launches_fill_a_graph(tmp_path):
    device = Playback()
    run(norms(), tmp_path, device, lambda line: None)
    rows = pq.read_table(tmp_path / "kernels_rms_norm.parquet").to_pylist()
    for row, pilot, launches in zip(rows, device.captured[::2], device.captured[1::2], strict=True):
        assert pilot == timing.PILOT and row["reps"] == launches == timing.launches(row["latency_us"] * 1e-6)
        assert row["latency_min_us"] == pytest.approx(0.99 * row["latency_us"], rel=2e-3)


def test_the_runner_rotates_buffers_beyond_the_cache(tmp_path):
    device = Playback()
    run(norms(), tmp_path, device, lambda line: None)
    for point, copies in device.prepared:
        assert copies * 4 * point["t"] * point["h"] >= 2 * device.l2 or copies == timing.MOST_LAUNCHES


def test_an_interrupted_sweep_keeps_its_results_and_can_be_continued(tmp_path):
    device, said = Playback(stop=10), []
    with pytest.raises(KeyboardInterrupt):
        run(POINTS, tmp_path, device, said.append)
    assert pq.read_table(tmp_path / "kernels_rms_norm.parquet").num_rows == 10
    rest = Playback()
    run(POINTS, tmp_path, rest, said.append)
    assert len(rest.prepared) == sum(map(len, POINTS)) - 10
    assert said[:2] == ["kernels_rms_norm.parquet: 10 points measured",
                        "kernels_rms_norm.parquet: 20 points measured, 10 were there before"]
    whole, again = tmp_path / "whole", Playback()
    run(POINTS, whole, again, said.append)
    for name in FAMILIES:
        both = [pq.read_table(folder / f"kernels_{name}.parquet") for folder in (tmp_path, whole)]
        assert both[0].to_pylist() == both[1].to_pylist()
    run(POINTS, whole, idle := Playback(), said.append)
    assert not idle.prepared


def test_points_that_cannot_be_measured_are_reported_and_left_out(tmp_path):
    said: list[str] = []
    written = run(POINTS, tmp_path, Playback(fails="moe"), said.append)
    assert len(written) == 3 and not (tmp_path / "kernels_moe.parquet").exists()
    count = sum(len(part) for part in POINTS if part.family == "moe")
    assert any(line.startswith(f"kernels_moe.parquet: {count} points left out, as t=1 e=128") and
               line.endswith(": no such kernel here") for line in said)


def test_a_folder_with_measurements_of_another_gpu_is_refused(tmp_path):
    run(norms(), tmp_path, Playback(), lambda line: None)
    with pytest.raises(ConfigError, match="has measurements of NVIDIA H200, but this GPU is NVIDIA B200; name another"):
        run(norms(), tmp_path, Playback("NVIDIA B200"), lambda line: None)


def test_the_command_returns_an_exit_code(tmp_path, monkeypatch, capsys):
    write_points(norms(), tmp_path / "points.csv")
    arguments = [str(tmp_path / "points.csv"), "-o", str(tmp_path / "out")]
    monkeypatch.setattr("ksim.calibration.sweep.TorchDevice", Playback)
    assert command.main(arguments) == 0
    assert "1 files in" in capsys.readouterr().out and len(read(tmp_path / "out")[0]) == 30
    monkeypatch.setattr("ksim.calibration.sweep.TorchDevice", lambda: Playback(stop=0))
    assert command.main([*arguments[:2], str(tmp_path / "other")]) == 130
    assert command.main(["none.csv", "-o", "out"]) == 1
    assert "ksim: none.csv: No such file" in capsys.readouterr().err


def test_without_pytorch_the_runner_says_what_it_needs(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    write_points(norms(), tmp_path / "points.csv")
    assert command.main([str(tmp_path / "points.csv"), "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("ksim: the runner: needs PyTorch and vLLM; run it where vLLM serves")


class Anything:
    """Stands for torch and vLLM: whatever is asked of it, it can."""

    def __getattr__(self, name):
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()

    def __getitem__(self, key):
        return self

    def __setitem__(self, key, value):
        pass

    def __iter__(self):
        return iter((Anything(), Anything()))


class Stub(Anything):
    """A device whose tensors are anything; `sets` are the sets of buffers that a launch had."""

    place, flash_attention = "cuda:0", 3

    def __init__(self):
        self.torch, self.ops = Anything(), Anything()
        self.sets = []

    def filled(self, copies, *shape):
        assert all(isinstance(size, int) and size > 0 for size in shape)
        self.sets.append(copies)
        return [Anything() for _ in range(copies)]


@pytest.mark.parametrize("family", LAUNCHES)
def test_launches_take_every_set_of_buffers(family):
    shape = {"m": 4, "n": 8, "k": 16, "hq": 8, "hkv": 2, "d": 64, "t": 3, "h": 32, "inter": 16, "e": 8, "topk": 2,
             "vocab": 100, "bytes": 64, "skew": 0.0}
    for dtype in ("bf16", "fp8") if family == "gemm" else ("bf16",):
        device = Stub()
        point = MeasurementPoint(family, dtype, shape, np.array([1, 3]), np.array([5, 33]))
        launch = LAUNCHES[family](device, point, 3)
        for i in range(7):
            launch(i)
        assert 3 in device.sets or family == "copy"


def test_a_gemm_in_a_format_without_a_kernel_is_unmeasurable():
    with pytest.raises(Unmeasurable, match="the runner knows no product in fp4"):
        LAUNCHES["gemm"](Stub(), MeasurementPoint("gemm", "fp4", {"m": 1, "n": 1, "k": 1}), 1)


@given(st.integers(1, 200), st.sampled_from([(8, 2), (16, 1), (128, 8), (4, 4)]), st.floats(0, 2))
def test_each_token_goes_to_different_experts(tokens, experts, skew):
    point = MeasurementPoint("moe", "bf16", {"t": tokens, "e": experts[0], "topk": experts[1], "skew": skew})
    ids = expert_choices(point)
    assert ids.shape == (tokens, experts[1]) and all(len({*row}) == experts[1] for row in ids.tolist())
    assert expert_loads(point).sum() == tokens * experts[1] and (ids == expert_choices(point)).all()


def test_skew_makes_some_experts_popular():
    shape = {"t": 4096, "e": 64, "topk": 4}
    even, skewed = (expert_loads(MeasurementPoint("moe", "bf16", {**shape, "skew": skew})) for skew in (0.0, 1.0))
    assert even.max() < 1.3 * even.mean() and skewed.max() > 3 * skewed.mean()
