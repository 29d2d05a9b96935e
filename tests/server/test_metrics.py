"""What GET /metrics answers: vLLM's metrics, with the numbers of the run."""

import asyncio
import json
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ksim.flow.request import Request
from ksim.results.history import History
from ksim.results.metrics import summarise
from ksim.scenario.scenario import Scenario
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.metrics import Meter
from tests.laws.tiny import uniform
from tests.properties import examples
from tests.server.fake import Ear, FakeLive, values

#: What vLLM 0.33 registers, as its own PrometheusStatLogger and NixlPromMetrics told with max_model_len 4096, two
#: drafted tokens and LoRA: types, further labels, buckets.
VLLM = json.loads((Path(__file__).parent / "vllm_metrics.json").read_text())
#: What a simulation cannot know, or vLLM tells only with --enable-mfu-metrics: docs/server.md.
UNKNOWN = {"vllm:admission_rejections", "vllm:nixl_post_time_seconds", "vllm:nixl_num_descriptors",
           "vllm:nixl_num_failed_transfers", "vllm:nixl_num_failed_notifications", "vllm:nixl_num_kv_expired_reqs",
           "vllm:nixl_num_notifications_after_expiry", "vllm:estimated_flops_per_gpu",
           "vllm:estimated_read_bytes_per_gpu", "vllm:estimated_write_bytes_per_gpu"}

#: What the dashboards in vLLM's repository select (examples/observability): samples, and labels that they go by.
SELECTED = {
    "vllm:request_success_total": {"model_name", "engine", "finished_reason"}, "vllm:prompt_tokens_total": {"engine"},
    "vllm:generation_tokens_total": {"engine"}, "http_requests_total": {"status", "method", "handler"},
    "vllm:time_to_first_token_seconds_bucket": {"le", "model_name"},
    "vllm:inter_token_latency_seconds_bucket": {"le", "model_name"},
    "vllm:e2e_request_latency_seconds_bucket": {"le"}, "vllm:e2e_request_latency_seconds_sum": {"model_name"},
    "vllm:num_requests_running": {"engine"}, "vllm:num_requests_waiting": {"engine"},
    "vllm:num_requests_waiting_by_reason": {"reason"}, "vllm:kv_cache_usage_perc": {"engine"},
    "vllm:request_queue_time_seconds_sum": {"model_name"}, "vllm:request_prefill_time_seconds_sum": {"model_name"},
    "vllm:request_decode_time_seconds_sum": {"model_name"}, "vllm:request_prompt_tokens_bucket": {"le"},
    "vllm:request_generation_tokens_bucket": {"le"}, "vllm:request_max_num_generation_tokens_sum": {"model_name"},
    "vllm:prefix_cache_hits_total": {"engine"}, "vllm:prefix_cache_queries_total": {"engine"},
    "vllm:num_preemptions_total": {"engine"}, "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
    "vllm:spec_decode_num_accepted_tokens_total": {"engine"}, "vllm:spec_decode_num_draft_tokens_total": {"engine"},
    "vllm:spec_decode_num_drafts_total": {"engine"},
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": {"position"}}


def scenario(model: Path | str = "llama-3.1-8b", **serve: Any) -> dict[str, Any]:
    return {"model": str(model), "gpu": "h100", "oracle": "roofline", "serve": {"max_model_len": 256} | serve,
            "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 200.0}, "prompt": uniform(1, 100),
                                       "output": uniform(1, 60), "count": 12, "max_tokens": 250}}}


def test_metrics_have_vllms_names_types_labels_and_buckets() -> None:
    drafted = scenario(max_model_len=4096, enable_lora=True, max_loras=4, lora_modules=[{"name": "a", "rank": 8}])
    drafted["serve"]["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 2,
                                              "acceptance": {"name": "geometric", "rate": 0.7}}
    split = scenario(max_model_len=4096) | {
        "pools": {"p": {"role": "prefill", "replicas": 1}, "d": {"role": "decode", "replicas": 1}}}
    told = {name: family for made in (drafted, split) for name, family in _families(Meter(
        FakeLive(made).live, "m").text()).items() if name.startswith("vllm:")}
    assert told["vllm:lora_requests_info"].pop("labels").keys() == {
        "max_lora", "waiting_lora_adapters", "running_lora_adapters"}
    told["vllm:lora_requests_info"]["labels"] = {}
    assert told.keys() - VLLM.keys() == {"vllm:cache_config_info"}
    assert VLLM.keys() - told.keys() == UNKNOWN
    assert {name: family for name, family in told.items() if name != "vllm:cache_config_info"} == {
        name: {"labels": {}, "buckets": []} | family for name, family in VLLM.items() if name not in UNKNOWN}


def test_dashboards_of_vllm_find_what_they_select() -> None:
    drafted = scenario()
    drafted["serve"]["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 2,
                                              "acceptance": {"name": "geometric", "rate": 0.7}}
    http = HttpMetrics(lambda *_: _nothing(), ["/v1/completions"])
    asyncio.run(http({"type": "http", "path": "/v1/completions", "method": "POST", "headers": []}, _nothing,
                     lambda _: _nothing()))
    told = Meter(FakeLive(drafted).live, "m").text(*http.families).decode()
    labels = {sample.name: set(sample.labels) for family in text_string_to_metric_families(told)
              for sample in family.samples}
    assert not {name for name, asked in SELECTED.items() if not asked <= labels.get(name, set())}


async def _nothing() -> Any:
    return None


def test_the_page_lists_what_is_not_simulated() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    assert not {name for name in UNKNOWN if f"`{name}`" not in page}


def _families(text: bytes) -> dict[str, dict[str, Any]]:
    families = {}
    for family in text_string_to_metric_families(text.decode()):
        labels: dict[str, list[str]] = {}
        for name, value in ((name, value) for sample in family.samples for name, value in sample.labels.items()):
            if value not in labels.setdefault(name, []):
                labels[name].append(value)
        buckets, engine = labels.pop("le", []), bool(labels.pop("engine", []))
        labels.pop("model_name", None)
        families[family.name] = {"type": family.type, "engine": engine, "labels": labels, "buckets": buckets}
    return families


@given(
    serve=st.fixed_dictionaries({
        "async_scheduling": st.booleans(), "max_num_seqs": st.sampled_from([2, 32]),
        "num_gpu_blocks_override": st.sampled_from([20, 500]), "data_parallel_size": st.sampled_from([1, 2])}),
    n=st.sampled_from([1, 1, 3]), seed=st.integers(0, 9))
@examples(30)
def test_counters_agree_with_the_summary_of_the_run(tiny: Path, serve: dict[str, Any], n: int, seed: int) -> None:
    table = scenario(tiny, **serve)
    table["workload"]["synthetic"]["prefixes"] = {"groups": 2, "tokens": 40}
    fake = FakeLive(table)
    meter = Meter(fake.live, "m")
    requests = [evolve(request, n=n) for request in Scenario.of(table).workload.requests(seed)]
    heard = fake.play(requests, meter.text)
    told = values(meter.text())
    summary = summarise(History(fake.kept))
    assert meter.kept == 0
    done = [one for one in heard if one.end and one.end[0] != "refused"]
    assert told["vllm:time_to_first_token_seconds_count"] == n * len(done)
    assert told["vllm:request_success_total"] == n * summary["completed"]
    assert told["vllm:generation_tokens_total"] == summary["total_output_tokens"] == told[
        "vllm:request_generation_tokens_sum"]
    assert told["vllm:prompt_tokens_total"] == n * summary["total_input_tokens"]
    assert told["vllm:num_preemptions_total"] == summary["preemptions"]
    assert told["vllm:iteration_tokens_total_count"] == summary["steps"]
    assert told["vllm:prompt_tokens_by_source_total"] == told["vllm:prompt_tokens_total"]
    assert told["vllm:num_requests_running"] == told["vllm:num_requests_waiting"] == 0
    if n == 1 and done:
        mean = told["vllm:time_to_first_token_seconds_sum"] / len(done)
        assert mean * 1000 == pytest.approx(summary["mean_ttft_ms"])
        assert told["vllm:e2e_request_latency_seconds_sum"] * 1000 / len(done) == pytest.approx(
            summary["mean_e2el_ms"])
        assert told["vllm:request_queue_time_seconds_sum"] * 1000 / len(done) == pytest.approx(
            summary["mean_queue_ms"])
        assert told["vllm:prefix_cache_hits_total"] / told["vllm:prefix_cache_queries_total"] == pytest.approx(
            summary["prefix_cache_hit_rate"])
        gaps = [b - a for one in done for a, b in pairwise(one.times)]
        assert told["vllm:inter_token_latency_seconds_count"] == len(gaps)
        assert told["vllm:inter_token_latency_seconds_sum"] == pytest.approx(sum(gaps))


def test_each_gap_between_tokens_is_counted(tiny: Path) -> None:
    fake = FakeLive(scenario(tiny, max_num_seqs=200))
    meter = Meter(fake.live, "m")
    for _ in range(150):
        fake.submit(Request(0, 0.0, 8, 30), Ear())
    fake.until(inf)
    told = meter.engines[0].metrics.histograms["inter_token_latency_seconds"]
    assert told.count == 150 * 29


def test_gauges_show_the_moment_of_the_scrape(tiny: Path) -> None:
    fake = FakeLive(scenario(tiny, max_num_seqs=2, num_gpu_blocks_override=100))
    meter = Meter(fake.live, "m")
    for _ in range(5):
        fake.submit(Request(0, 0.0, 30, 50), Ear())
    for _ in range(40):
        fake.until(fake.live.env.due)
    told = values(meter.text())
    assert (told["vllm:num_requests_running"], told["vllm:num_requests_waiting"]) == (2, 3)
    assert told["vllm:num_requests_waiting_by_reason"] == 3
    assert told["ksim:requests_in_flight"] == 5
    assert 0 < told["vllm:kv_cache_usage_perc"] <= 0.2


def test_labels_are_quoted() -> None:
    meter = Meter(FakeLive(scenario()).live, 'a"b\\c\nd')
    labels = {sample.labels.get("model_name") for family in text_string_to_metric_families(meter.text().decode())
              for sample in family.samples}
    assert 'a"b\\c\nd' in labels
