"""The public traces themselves, against what others measured in them."""

import gzip
import json

import pytest

from ksim.foundation.rng import stream
from ksim.workload.distributions import FromTable, LengthTable, tokens
from ksim.workload.reading import recognise
from ksim.workload.replay import Replay
from ksim.workload.rows import Ledger
from ksim.workload.statistics import measure

MEASURED = [
    ("azure_llm_2023/AzureLLMInferenceTrace_code.csv", "azure_llm_2023/code|shared", "azure"),
    ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv", "azure_llm_2023/conv|shared", "azure"),
    ("mooncake_fast25/conversation_trace.jsonl", "mooncake_fast25/conversation|shared", "mooncake"),
    ("mooncake_fast25/synthetic_trace.jsonl", "mooncake_fast25/synthetic|shared", "mooncake"),
    ("vidur/splitwise_code.csv", "vidur/splitwise_code|shared", "vidur"),
    ("vidur/splitwise_conv.csv", "vidur/splitwise_conv|shared", "vidur"),
]
SAMPLES = [
    ("azure_llm_2024/AzureLLMInferenceTrace_code_1week.sample10.csv", "azure", 10),
    ("azure_llm_2024/AzureLLMInferenceTrace_conv_1week.sample10.csv", "azure", 10),
    ("azure_lmm_2025/AzureLMMInferenceTrace_multimodal.sample10.csv", "azure", 10),
    ("frontier/prefix_cache_shared_session_trace.csv", "vidur", 2),
    ("splitwise_sim/test_trace.csv", "splitwise", 3),
]
#: Files of formats that have no reader: their statistics, and their columns, whose times are in ns.
OWN_COLUMNS = [
    ("llmservingsim/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz", "llmservingsim/sharegpt-llama-3.1-8b|shared",
     {"arrival": "arrival_time_ns", "prompt": "input_toks", "output": "output_toks"}),
    ("apex_plus/llama/lmsys_05.jsonl", "apex_plus/llama/lmsys_05|shared",
     {"arrival": "StartTimeOffset", "prompt": "ContextTokens", "output": "GeneratedTokens"}),
]
WITH_AGENTS = "agentic_weka/trace_0274.json.gz"
TABLES = {"azure-conv-2023": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
          "azure-code-2023": "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
          "mooncake-conversation": "mooncake_fast25/conversation_trace.jsonl"}


@pytest.mark.parametrize(("file", "key", "format"), MEASURED)
def test_statistics_are_those_that_others_measured(extracts, known, file, key, format):
    assert recognise(extracts / file) == format
    same_statistics(measure(Replay(extracts / file).requests(0)), known[key])


@pytest.mark.parametrize(("file", "key", "columns"), OWN_COLUMNS)
def test_statistics_of_files_whose_columns_are_named(extracts, known, file, key, columns):
    same_statistics(measure(Replay(extracts / file, columns=columns, time_unit="ns").requests(0)), known[key])


def same_statistics(statistics, theirs):
    arrivals = statistics.arrivals
    assert statistics.requests == theirs["arrivals"]["n"]
    assert arrivals.duration == pytest.approx(theirs["arrivals"]["duration_s"], abs=6e-4)
    assert arrivals.rate == pytest.approx(theirs["arrivals"]["rate_rps"], abs=6e-5)
    assert arrivals.variation == pytest.approx(theirs["arrivals"]["ia_cv"], abs=6e-4)
    assert arrivals.longest_gap == pytest.approx(theirs["arrivals"]["ia_max_s"], abs=6e-4)
    assert (arrivals.ties, arrivals.peak_1s) == (theirs["arrivals"]["zero_gaps"], theirs["arrivals"]["peak_1s"])
    if "peak_10s" in theirs["arrivals"]:
        assert arrivals.peak_10s * 10 == pytest.approx(theirs["arrivals"]["peak_10s"])
    for ours, name in ((statistics.prompt, "prompt"), (statistics.output, "output")):
        assert ours.mean == pytest.approx(theirs[name]["mean"], abs=0.06)
        for probability, percentile in ((0.05, "p5"), (0.25, "p25"), (0.5, "p50"), (0.75, "p75"), (0.9, "p90"),
                                        (0.95, "p95"), (0.99, "p99"), (1.0, "max")):
            assert ours.at(probability) == pytest.approx(theirs[name][percentile], abs=0.06)


@pytest.mark.parametrize(("file", "key", "format"), [case for case in MEASURED if case[2] == "mooncake"])
def test_sharing_is_what_others_measured(extracts, known, file, key, format):
    statistics = measure(Replay(extracts / file).requests(0))
    theirs, sharing = known[key]["prefix"], statistics.sharing
    assert (sharing.chunks, sharing.requests_all_hit) == (theirs["blocks"], theirs["fully_cached_requests"])
    assert sharing.hit_chunks / sharing.chunks == pytest.approx(theirs["prefix_hit_blocks"], abs=6e-5)
    assert statistics.hit_share == pytest.approx(theirs["prefix_hit_tokens"], abs=6e-5)
    assert sharing.requests_with_hit / statistics.requests == pytest.approx(theirs["requests_with_hit"], abs=6e-5)


def test_burstgpt_failures_are_no_requests(extracts, known):
    theirs, ledger = known["burstgpt/head42|shared"], Ledger()
    statistics = measure(Replay(extracts / "burstgpt/BurstGPT_1.head42.csv").requests(0, ledger), ledger)
    assert (ledger.rows, ledger.zero_outputs) == (theirs["arrivals"]["n"], theirs["output"]["zeros"])
    assert statistics.requests == 38
    assert statistics.prompt.total == pytest.approx(42 * theirs["prompt"]["mean"], abs=3)
    assert statistics.output.total == pytest.approx(42 * theirs["output"]["mean"], abs=3)


def test_aibrix_has_two_requests_without_output(extracts, known):
    theirs, ledger = known["aibrix/8min_up_and_down|shared"], Ledger()
    path = extracts / "aibrix/8min_up_and_down.jsonl"
    statistics = measure(Replay(path).requests(0, ledger), ledger)
    assert recognise(path) == "aibrix"
    assert (ledger.rows, ledger.zero_outputs) == (theirs["arrivals"]["n"], theirs["output"]["zeros"])
    assert statistics.prompt.total == pytest.approx(2026 * theirs["prompt"]["mean"], rel=0.002)
    assert statistics.output.total == pytest.approx(2026 * theirs["output"]["mean"], rel=0.002)
    assert statistics.arrivals.duration == pytest.approx(theirs["arrivals"]["duration_s"])


def test_weka_sessions_are_read_whole(extracts, tmp_path):
    files = sorted((extracts / "agentic_weka").glob("trace_*.json.gz"), key=lambda file: file.stat().st_size)
    sessions = [gzip.decompress(file.read_bytes()) for file in (*files[:10], extracts / WITH_AGENTS)]
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"\n".join(sessions))
    assert recognise(path) == "weka"
    statistics = measure(Replay(path, rate=0.01).requests(0))
    calls = [call for session in sessions for call in weka_calls(json.loads(session))]
    assert statistics.requests == len(calls)
    assert statistics.turns.count == statistics.arrivals.arrivals == len(sessions)
    assert statistics.prompt.total == sum(call["in"] for call in calls)
    assert statistics.sharing.chunks == sum(call["in"] // 64 for call in calls)
    assert statistics.sharing.hit_chunks / statistics.sharing.chunks > 0.9


def weka_calls(holder):
    """All calls of a session or sub-agent, and of its own sub-agents."""
    for call in holder["requests"]:
        yield from weka_calls(call) if call["type"] == "subagent" else [call]


@pytest.mark.parametrize("client", ["reason/deepseek-r1/chunk-55", "multimodal/mm-image/chunk-28"])
def test_clients_of_servegen_keep_their_rates_and_lengths(extracts, known, client):
    theirs, path = known[f"servegen/{client}-trace.csv|shared"], extracts / f"servegen/{client}-trace.csv"
    statistics = measure(Replay(path).requests(0))
    assert recognise(path) == "servegen"
    assert statistics.requests == pytest.approx(theirs["mean_rate"] * theirs["windows"] * 600, rel=5e-4)
    assert statistics.prompt.mean == pytest.approx(theirs["w_mean_in"], rel=0.01)
    assert statistics.output.mean == pytest.approx(theirs["w_mean_out"], rel=0.02)


@pytest.mark.parametrize(("file", "format", "requests"), SAMPLES)
def test_samples_of_traces_are_read_whole(extracts, file, format, requests):
    assert recognise(extracts / file) == format
    assert len(list(Replay(extracts / file).requests(0))) == requests


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_lengths_are_fitted_to_the_traces(extracts, name):
    table = LengthTable.named(name)
    replay = Replay(extracts / TABLES[name], spread="mooncake" in name)
    statistics = measure(replay.requests(0))
    arrivals = statistics.arrivals
    assert (table.requests, table.rate, table.burstiness) == (
        statistics.requests, round(arrivals.rate, 4), round(arrivals.burstiness, 4))
    for side in ("prompt", "output"):
        quantiles = tuple(round(getattr(statistics, side).at(p), 1) for p in table.probabilities)
        assert getattr(table, side) == quantiles


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("side", ["prompt", "output"])
def test_draws_from_a_table_have_the_mean_of_its_trace(extracts, name, side):
    draws = tokens(FromTable(name), stream(0, "test"), side)
    real = getattr(measure(Replay(extracts / TABLES[name]).requests(0)), side)
    assert sum(next(draws) for _ in range(20_000)) / 20_000 == pytest.approx(real.mean, rel=0.04)
