import csv
import json
import os
from pathlib import Path

import pytest
from pyarrow import parquet

from ksim.flow.log import Log
from ksim.foundation.errors import ConfigError
from ksim.results.numbers import LatencyTargets
from ksim.views.result import Result
from tests.results import by_hand, fabricate

FILES = {"summary.json", "overview.json", "scenario.toml", "requests.parquet", "steps.parquet", "attribution.parquet",
         "kernels.csv", "trace.json.gz"}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def result() -> Result:
    return Result(by_hand.small(), {"model_id": "tiny-lm", "seed": 1}, LatencyTargets(ttft=1.2))


def test_a_saved_run_holds_what_the_result_says(result, tmp_path):
    run = result.save(tmp_path / "run", "seed = 1\n", plots=False)
    assert set(contents(run)) == FILES
    summary = json.loads((run / "summary.json").read_text())
    assert summary == result.summary
    assert list(summary)[:4] == ["model_id", "seed", "slo_ttft_ms", "slo_tpot_ms"]
    assert (summary["slo_ttft_ms"], summary["slo_tpot_ms"]) == (1200.0, None)
    assert parquet.read_table(run / "requests.parquet").equals(result.requests)
    assert parquet.read_table(run / "steps.parquet").equals(result.steps)
    assert parquet.read_table(run / "attribution.parquet").equals(result.attribution)
    rows = list(csv.DictReader((run / "kernels.csv").open()))
    assert [row["label"] for row in rows] == result.kernels["label"].to_pylist()
    assert (run / "scenario.toml").read_text() == "seed = 1\n"


def test_the_same_run_gives_the_same_bytes(tmp_path):
    first, second = (
        Result(fabricate.log(count=25), {"gpu": "h200"}, LatencyTargets(ttft=0.02)).save(tmp_path / name, "x = 1\n")
        for name in ("first", "elsewhere"))
    assert contents(first) == contents(second)
    assert {f"plots/{name}.png" for name in ("latency", "timeline", "composition", "roofline")} <= set(contents(first))


def test_an_earlier_run_is_replaced(result, tmp_path):
    run = result.save(tmp_path / "run", "seed = 1\n", plots=False)
    result.save(run, "seed = 2\n", plots=False, trace=False)
    assert (run / "scenario.toml").read_text() == "seed = 2\n"
    assert set(contents(run)) == FILES - {"trace.json.gz"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_directory_may_be_used_and_parents_are_made(result, tmp_path):
    (tmp_path / "empty").mkdir()
    result.save(tmp_path / "empty", "", plots=False)
    assert result.save(tmp_path / "a" / "b" / "run", "", plots=False).is_dir()


def test_files_that_are_no_run_are_left_alone(result, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("thesis", "file"):
        with pytest.raises(ConfigError, match=f"{name}: exists and is not the directory of an earlier run"):
            result.save(tmp_path / name, "")
    assert contents(tmp_path) == {"thesis/chapter.tex": b"precious", "file": b"precious"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("old", [False, True])
def test_nothing_half_written_is_left(result, tmp_path, monkeypatch, error, old):
    target = tmp_path / "made" / "run"
    if old:
        result.save(target, "old", plots=False)
    before = contents(tmp_path)

    def interrupt(self, path, window=None):
        path.write_text("half")
        raise error

    monkeypatch.setattr(Result, "trace", interrupt)
    with pytest.raises(error):
        result.save(target, "new", plots=False)
    assert contents(tmp_path) == before
    assert list(tmp_path.iterdir()) == ([tmp_path / "made"] if old else [])


def test_an_interrupted_swap_puts_the_old_run_back(result, tmp_path, monkeypatch):
    run = result.save(tmp_path / "run", "old", plots=False)
    rename = Path.rename

    def interrupt(self, target):
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        result.save(run, "new", plots=False)
    assert (run / "scenario.toml").read_text() == "old"
    assert list(tmp_path.iterdir()) == [run]


def test_a_place_that_cannot_be_written_is_named(result, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file is not a directory"):
        result.save(tmp_path / "file" / "run", "")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"cannot be written: no permission to write in"):
        result.save(tmp_path / "run", "")


def test_a_full_disk_is_a_clear_error(result, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "_write", full)
    with pytest.raises(ConfigError, match=r"run: cannot be written: No space left on device"):
        result.save(tmp_path / "run", "")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_run_can_be_saved_too(tmp_path):
    run = Result(Log([by_hand.ENGINE])).save(tmp_path / "run", "")
    assert json.loads((run / "summary.json").read_text())["mean_ttft_ms"] is None
    assert set(contents(run)) == FILES


def test_an_unlimited_request_rate_is_written_as_vllm_does(tmp_path):
    run = Result(by_hand.small(), {"request_rate": float("inf")}).save(tmp_path / "run", "", plots=False, trace=False)
    assert json.loads((run / "summary.json").read_text())["request_rate"] == "inf"


def test_tables_go_to_pandas(result):
    assert result.requests.to_pandas()["ttft_s"].mean() == pytest.approx(1.1875)
