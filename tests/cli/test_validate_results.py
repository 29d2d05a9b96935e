"""`ksim validate serving RESULT... --scenario SCENARIO`, as a user meets it."""

import json

import pytest

from tests.cli.command import ksim
from tests.validation.benchmarks import fabricate
from tests.validation.benchmarks.fabricate import mixed, run

#: It needs no workload.
SCENARIO = 'model = "llama-3.2-1b"\ngpu = "h200"\n[serve]\nmax_model_len = 8192\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO)
    (tmp_path / "vllm.json").write_text(fabricate.vllm_bench(run(mixed(14))))
    (tmp_path / "agg.json").write_text(fabricate.inferencemax(run(((200, 9),) * 20, concurrency=2), 2))
    return tmp_path


def test_errors_parts_and_causes_are_printed_and_written(folder):
    words = ("validate", "serving", "vllm.json", "agg.json", "--scenario", "s.toml", "--json", "o.json")
    out = ksim(*words, folder=folder)
    assert "vllm: vllm bench serve, 14 requests, 250 requests/s" in out and "agg: InferenceMAX, 20 requests" in out
    assert "note: simulated: recorded lengths and arrivals" in out and "by length of the prompt" in out
    assert "what differs: nothing by more than 2 % of a mean latency" in out and "all runs, by load" in out
    assert out.splitlines()[-1] == "median absolute errors of 2 runs: TTFT 0.00 %, TPOT 0.00 %, throughput 0.00 %"
    table = json.loads((folder / "o.json").read_text())
    assert table["ttft_median_ape"] == pytest.approx(0, abs=1e-6)
    (first, second) = table["runs"]
    assert first["client"] == "vllm bench serve" and first["measured"].keys() == first["predicted"].keys()
    assert len(first["by_load"]) > 1 and second["load"]["concurrency"] == 2 and second["facts"]["tp"] == 1


def test_another_scenario_differs_and_says_where(folder):
    out = ksim("validate", "serving", "vllm.json", "--scenario", "s.toml", "--set", "gpu=a100-80g", folder=folder)
    assert "decode step" in out and "what differs (ms that the deployment needs more than simulated)" in out
    assert "TPOT 0.00 %" not in out


def test_a_folder_of_results_is_all_of_them(folder):
    out = ksim("validate", "serving", ".", "--scenario", "s.toml", folder=folder)
    assert out.splitlines()[-1].startswith("median absolute errors of 2 runs")


@pytest.mark.parametrize(("words", "says"), [
    (["vllm.json"], "--scenario: vllm.json is the result of a benchmark: name the scenario"),
    (["vllm.json", "agg.json"], "--scenario: name the scenario of the deployment"),
    (["s.toml", "--scenario", "s.toml"], "s.toml:1: is not JSON at column 1"),
    (["no.json", "--scenario", "s.toml"], "no.json: No such file or directory"),
    (["vllm.json", "--scenario", "no.toml"], "no.toml: No such file or directory"),
    (["vllm.json", "--scenario", "agg.json"], "agg.json"),
    (["empty", "--scenario", "s.toml"], "has no result of a known benchmark client"),
])
def test_what_cannot_be_compared_is_an_error(folder, words, says):
    (folder / "empty").mkdir()
    assert says in ksim("validate", "serving", *words, folder=folder, code=1)
