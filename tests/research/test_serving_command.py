"""`python -m benchmarks.research serving` and `steps`, as a user meets them."""

import json

import pytest

from tests.research.command import research
from tests.research.recorded_engines import record, run, sent

RUNS = [run("warm", sent((50, 3))), run("poisson-9", sent(*[(120, 12)] * 6, every=0.05))]


@pytest.fixture
def folder(tmp_path):
    record(tmp_path, RUNS)
    return tmp_path


def test_serving_prints_and_writes_errors(folder):
    out = research("serving", ".", "--json", "out.json", folder=folder)
    assert "note: simulated on h200 as vllm-0.22" in out
    assert "left out, 1: tiny warm: holds what an engine does only once" in out
    assert out.splitlines()[-1] == ("median absolute errors of 1 runs: TTFT 0.00 %, TPOT 0.00 %, throughput 0.00 %,"
                                    " energy 0.00 %")
    table = json.loads((folder / "out.json").read_text())
    assert {"ttft_median_ape", "tpot_median_ape", "throughput_median_ape", "energy_median_ape"} <= table.keys()
    (row,) = table["runs"]
    assert row["run"] == "poisson-9" and row["error_percent"]["ttft_p50_ms"] == pytest.approx(0, abs=1e-6)
    assert table["left_out"] == [{"what": "tiny warm", "reason": "holds what an engine does only once"}]


def test_steps_prints_and_writes_errors(folder):
    out = research("steps", ".", "--json", "out.json", folder=folder)
    assert out.splitlines()[-1].startswith("absolute errors of ")
    table = json.loads((folder / "out.json").read_text())
    assert table["steps"] > 50 and table["step_median_ape"] < 0.5


def test_another_host_gives_other_times(folder):
    """Who names a host that was not the runs' is off by it."""
    out = research("serving", ".", "--host", "datasheet", folder=folder)
    assert "TPOT 0.00 %" not in out.splitlines()[-1]


def test_unusable_recordings_and_options_are_errors(folder, tmp_path):
    (empty := tmp_path / "empty").mkdir()
    assert "has no engine_*.json; expected" in research("serving", "empty", folder=tmp_path, code=1)
    assert not list(empty.iterdir())
    assert "no gpu" in research("serving", ".", "--gpu", "h2000", folder=folder, code=1)
    assert "--json" in research("steps", ".", "--json", "no/where.json", folder=folder, code=1)
    folder.joinpath("requests_tiny.parquet").unlink()
    assert "requests_tiny.parquet: No such file" in research("steps", ".", folder=folder, code=1)
