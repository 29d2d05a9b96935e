"""What `ksim run` and `ksim replay` leave in their output directories, and what they say before and after."""

import json

import pytest
from pyarrow import parquet

from ksim.views import run_directory
from tests.cli.command import SCENARIO, ksim_here

REPLAY = ("replay", "t.csv", "--model", "llama-3.2-1b", "--gpu", "h200", "-o", "out", "--no-plots", "--no-trace")


@pytest.fixture
def trace(tmp_path):
    def write(*rows):
        (tmp_path / "t.csv").write_text("\n".join(["arrival,prompt,output", *rows, ""]))
        return tmp_path

    return write


def summary(folder):
    return json.loads((folder / "out" / "summary.json").read_text())


@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_an_earlier_run_is_replaced_by_force_only(trace, flags):
    folder = trace("0,9,2", "1,9,2")
    assert ksim_here(*REPLAY, *flags, folder=folder).status == 0
    refused = ksim_here(*REPLAY, *flags, "--num-prompts", "1", folder=folder)
    assert refused.status == 1 and "--force" in refused.stderr and summary(folder)["completed"] == 2
    assert ksim_here(*REPLAY, *flags, "--num-prompts", "1", "--force", folder=folder).status == 0
    assert summary(folder)["completed"] == 1


@pytest.mark.parametrize("command", [REPLAY, ("serve", "s.toml", "-o", "out", "--force")])
def test_no_two_processes_write_to_one_directory(trace, command):
    folder = trace("0,9,2")
    (folder / "s.toml").write_text(SCENARIO)
    with run_directory.claimed(folder / "out"):
        outcome = ksim_here(*command, folder=folder)
    assert outcome.status == 1 and not (folder / "out").exists()
    assert outcome.stderr == (f"ksim: {folder / 'out'}: another process is writing there; choose another name, or wait"
                              " for it\n")


def test_an_empty_directory_needs_no_force(trace):
    (trace("0,9,2") / "out").mkdir()
    assert ksim_here(*REPLAY, folder=trace("0,9,2")).status == 0


@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_a_run_that_rejected_everything_fails_and_is_written_with_the_reasons(trace, flags):
    folder = trace("0,100,2", "1,200,2", "2,300,2", "3,60,4")
    outcome = ksim_here(*REPLAY, *flags, "--max-model-len", "64", "--num-gpu-blocks-override", "3", folder=folder)
    assert outcome.status == 1 and outcome.stdout == ""
    assert outcome.stderr == ("ksim: all 4 requests were rejected: its prompt of 100 tokens leaves no room for output"
                              " in max_model_len = 64 (3 of them); out/requests.parquet has the reason of each\n")
    reasons = parquet.read_table(folder / "out" / "requests.parquet")["reason"].to_pylist()
    assert len(reasons) == 4 and all(reasons)


@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_arrivals_that_span_years_are_remarked_on_and_take_no_more_memory(trace, flags):
    outcome = ksim_here(*REPLAY, *flags, folder=trace("0,9,2", "900000000,9,3"))
    assert outcome.status == 0
    assert outcome.stderr == ("ksim: arrivals span 10,417 days; if these are milliseconds or microseconds:"
                              " --time-unit ms or --time-unit us\n")


def test_one_refused_request_is_no_failure(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO.replace("8192", "300"))
    outcome = ksim_here("run", "s.toml", folder=tmp_path)
    assert outcome.status == 0 and "rejected" in outcome.stdout
