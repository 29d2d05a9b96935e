"""What GET /metrics answers where the engine is SGLang: its metrics, with the numbers of the run."""

import asyncio
import json
import re
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
from ksim.server.sglang_metrics import DecodeWindow, SglangHttpMetrics, SglangMeter
from tests.laws.tiny import uniform
from tests.properties import examples
from tests.server.fake import Ear, FakeLive, values
from tests.server.talk import SGLANG, client

#: What SGLang 0.5.23 registers, as its own collectors of schedulers, of tokenizers and of HTTP told, with LoRA: types,
#: further labels, buckets.
REGISTERED = json.loads((Path(__file__).parent / "sglang_metrics.json").read_text())
LABELS = {"scheduler": {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"},
          "server": {"model_name", "engine_type"}, "http": set[str]()}
#: What the dashboard in SGLang's repository selects (examples/monitoring/grafana).
SELECTED = {"e2e_request_latency_seconds_bucket", "time_to_first_token_seconds_bucket", "num_running_reqs",
            "gen_throughput", "cache_hit_rate", "num_queue_reqs", "token_usage", "inter_token_latency_seconds_bucket",
            "prompt_tokens_total", "generation_tokens_total", "num_requests_total"}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"name": "geometric", "rate": 0.7}}


def scenario(model: Path | str = "llama-3.1-8b", own: dict[str, Any] | None = None, **serve: Any) -> dict[str, Any]:
    return {"model": str(model), "gpu": "h100", "oracle": "roofline", "engine": "sglang-0.5.8",
            "serve": {"sglang": {"context_length": 256} | (own or {})} | serve,
            "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 200.0}, "prompt": uniform(1, 100),
                                       "output": uniform(1, 60), "count": 12, "max_tokens": 250}}}


def families(text: bytes) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())
            if family.name.startswith("sglang:")}


def everything() -> dict[str, Any]:
    """The families of engines that draft, serve adapters, and are split."""
    drafted = scenario(enable_lora=True, lora_modules=[{"name": "a", "rank": 8}], speculative_config=DRAFTS)
    split = scenario() | {"pools": {"p": {"role": "prefill", "replicas": 1}, "d": {"role": "decode", "replicas": 1}}}
    http = SglangHttpMetrics(lambda *_: _nothing(), ["/generate"])
    asyncio.run(http({"type": "http", "path": "/generate", "method": "POST"}, _nothing, lambda _: _nothing()))
    return {name: family for made in (split, drafted)
            for name, family in families(SglangMeter(FakeLive(made).live, "m").text(*http.families)).items()}


async def _nothing() -> Any:
    return None


def test_metrics_have_sglangs_names_types_labels_and_buckets() -> None:
    told = everything()
    assert not told.keys() - REGISTERED.keys()
    for name, family in told.items():
        real = REGISTERED[name]
        assert family.type == real["type"], name
        for sample in family.samples:
            assert sample.labels.keys() - {"le", "dp_rank"} == LABELS[real["of"]] | {*real["labels"]}, sample
        if bounds := [*dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels)]:
            assert [float(bound) for bound in bounds] == [*real["buckets"], inf], name


def test_the_dashboard_of_sglang_finds_what_it_selects() -> None:
    text = SglangMeter(FakeLive(scenario()).live, "m").text().decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert not {name for name in SELECTED if f"sglang:{name}" not in names}
    assert not any(name.startswith("vllm:") for name in names)


def test_the_page_lists_what_is_not_simulated() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    left_out = REGISTERED.keys() - everything().keys()
    listed = re.findall(r"`(sglang:\w+)(\*?)`", page.partition("are missing for SGLang")[2].partition("## ")[0])
    found = {name for name in REGISTERED for stem, star in listed if name == stem or (star and name.startswith(stem))}
    assert found == left_out


@given(
    own=st.fixed_dictionaries({
        "disable_radix_cache": st.booleans(), "max_running_requests": st.sampled_from([2, 32]),
        "max_total_tokens": st.sampled_from([400, 8000])}),
    ranks=st.sampled_from([1, 2]), n=st.sampled_from([1, 1, 3]), seed=st.integers(0, 9))
@examples(30)
def test_counters_agree_with_the_summary_of_the_run(tiny: Path, own: dict[str, Any], ranks: int, n: int,
                                                        seed: int) -> None:
    table = scenario(tiny, own, data_parallel_size=ranks)
    table["workload"]["synthetic"]["prefixes"] = {"groups": 2, "tokens": 40}
    fake = FakeLive(table)
    meter = SglangMeter(fake.live, "m")
    requests = [evolve(request, n=n) for request in Scenario.of(table).workload.requests(seed)]
    heard = fake.play(requests, meter.text)
    told, summary = values(meter.text()), summarise(History(fake.kept))
    assert meter.kept == 0
    done = [one for one in heard if one.end and one.end[0] != "refused"]
    assert told["sglang:num_requests_total"] == n * summary["completed"]
    assert told["sglang:time_to_first_token_seconds_count"] == n * len(done)
    assert told["sglang:generation_tokens_total"] == summary["total_output_tokens"]
    assert told["sglang:prompt_tokens_total"] == n * summary["total_input_tokens"]
    assert told["sglang:prompt_tokens_histogram_sum"] - told["sglang:uncached_prompt_tokens_histogram_sum"] == told[
        "sglang:cached_tokens_total"]
    assert told["sglang:num_retracted_requests_total"] == summary["preemptions"]
    assert told["sglang:inter_token_latency_seconds_count"] == summary["total_output_tokens"] - n * len(done)
    assert told["sglang:num_running_reqs"] == told["sglang:num_queue_reqs"] == told["sglang:num_used_tokens"] == 0
    assert told["sglang:kv_available_tokens"] + told["sglang:kv_evictable_tokens"] == told[
        "sglang:max_total_num_tokens"]
    if n == 1 and done:
        assert told["sglang:time_to_first_token_seconds_sum"] * 1e3 / len(done) == pytest.approx(
            summary["mean_ttft_ms"])
        assert told["sglang:e2e_request_latency_seconds_sum"] * 1e3 / len(done) == pytest.approx(
            summary["mean_e2el_ms"])
        assert told["sglang:queue_time_seconds_sum"] * 1e3 / len(done) == pytest.approx(summary["mean_queue_ms"])
        if not summary["preemptions"]:
            assert told["sglang:cached_tokens_total"] / told["sglang:prompt_tokens_total"] == pytest.approx(
                summary["prefix_cache_hit_rate"])


def test_gauges_show_the_moment_of_the_scrape(tiny: Path) -> None:
    fake = FakeLive(scenario(tiny, {"max_running_requests": 2, "max_total_tokens": 1000}))
    meter = SglangMeter(fake.live, "m")
    for _ in range(5):
        fake.submit(Request(0, 0.0, 30, 50), Ear())
    for _ in range(40):
        fake.until(fake.live.env.due)
    told = values(meter.text())
    assert (told["sglang:num_running_reqs"], told["sglang:num_queue_reqs"]) == (2, 3)
    assert 60 < told["sglang:decode_sum_seq_lens"] <= told["sglang:num_used_tokens"] <= 162
    assert told["sglang:token_usage"] == round(told["sglang:full_token_usage"], 2) > 0


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 1.0)), max_size=200))
@examples(50)
def test_throughput_is_that_of_the_latest_40_decode_steps(steps: list[tuple[int, float]]) -> None:
    window, now = DecodeWindow(), 0.0
    for tokens, seconds in steps:
        now += seconds
        window.add(tokens, now)
    whole = steps[:len(steps) // 40 * 40][-40:]
    assert window.throughput == pytest.approx(sum(tokens for tokens, _ in whole) / sum(s for _, s in whole)
                                              if whole else 0.0)
    assert window.recent(now + 40) == 0.0


def test_prefill_engines_count_transfers_and_no_times_of_tokens(tiny: Path) -> None:
    split = scenario(tiny) | {"pools": {name: {"role": role, "replicas": 1, "serve": {
        "kv_transfer_config": {"kv_connector": "sglang"}}} for name, role in (("p", "prefill"), ("d", "decode"))}}
    fake = FakeLive(split)
    meter = SglangMeter(fake.live, "m")
    fake.play([Request(0, 0.0, 50, 20), Request(1, 0.5, 60, 20)])
    told = families(meter.text())
    counts = {(sample.name, sample.labels["engine_type"]): sample.value for family in told.values()
              for sample in family.samples if "le" not in sample.labels and sample.labels.get("is_streaming") != "true"}
    assert counts["sglang:kv_transfer_latency_ms_count", "prefill"] == 2
    assert counts["sglang:time_to_first_token_seconds_count", "decode"] == 2
    assert counts["sglang:time_to_first_token_seconds_count", "prefill"] == 0
    assert counts["sglang:num_requests_total", "prefill"] == counts["sglang:num_requests_total", "decode"] == 2
    assert counts["sglang:num_decode_transfer_queue_reqs", "decode"] == 0


def test_streams_count_apart_and_the_gone_as_aborted() -> None:
    async def play() -> bytes:
        async with client(scenario=SGLANG, speed=1e3) as (made, application):
            meter = application.engine.meter
            application.api.on_abort = meter.aborted
            short = {"text": "a", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
            for stream in (True, True, False):
                await made.post("/generate", json={**short, "stream": stream})
            asked = asyncio.create_task(made.post("/generate", json={
                "text": "a", "sampling_params": {"max_new_tokens": 240, "ignore_eos": True}}))
            while not meter.kept:
                await asyncio.sleep(0)
            application.api.abort([*application.api.live.handles.values()])
            asked.cancel()
            return bytes((await made.get("/metrics")).content)
    told = {(sample.name, sample.labels.get("is_streaming")): sample.value
            for family in families(asyncio.run(play())).values() for sample in family.samples}
    assert told["sglang:num_requests_total", "true"] == 2
    assert told["sglang:num_requests_total", "false"] == 1
    assert told["sglang:generation_tokens_total", "true"] == 6
    assert told["sglang:num_aborted_requests_total", None] == 1


def test_requests_over_http_count_by_endpoint_and_status() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200 if scope["path"] == "/generate" else 404})

    async def call() -> SglangHttpMetrics:
        http = SglangHttpMetrics(app, ["/generate"])
        for path in ("/generate", "/generate", "/a", "/b"):
            await http({"type": "http", "path": path, "method": "POST"}, _nothing, lambda _: _nothing())
        return http
    requests, responses, active = asyncio.run(call()).families
    assert {key: sample.value for key, sample in responses.samples.items()} == {
        (("endpoint", "/generate"), ("status_code", "200"), ("method", "POST")): 2,
        (("endpoint", "none"), ("status_code", "404"), ("method", "POST")): 2}
    assert sum(sample.value for sample in requests.samples.values()) == 4
    assert {sample.value for sample in active.samples.values()} == {0}
