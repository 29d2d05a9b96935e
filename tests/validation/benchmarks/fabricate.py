"""Results of benchmark clients, fabricated from simulated runs: what each client would have written of them."""

import json
from functools import cache

import numpy as np
from attrs import evolve

from ksim.flow.request import Request
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.validation.benchmarks.comparison import served_of
from ksim.validation.benchmarks.recorded import ReplayedRun, figures_of, span

SCENARIO = Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "serve": {"max_model_len": 8192},
                        "workload": ANY_WORKLOAD})
#: When a client's clock began.
ORIGIN = 1_795_000_000


@cache
def run(lengths, gap=0.004, concurrency=None):
    """Requests of *lengths* (prompt, output), one every *gap* seconds, as simulated."""
    every = 0.0 if concurrency else gap
    requests = tuple(Request(number, every * number, *pair) for number, pair in enumerate(lengths))
    return simulated(ReplayedRun(requests, concurrency, ""))


def simulated(load):
    """The requests of *load* as simulated."""
    workload = evolve(SCENARIO.workload, max_concurrency=load.concurrency)
    return served_of(play(Fleet.of(evolve(SCENARIO, workload=workload)), load.requests))


def mixed(count):
    """Lengths as various as a conversation's."""
    return tuple((50 + 331 * number % 1900, 2 + 7 * number % 23) for number in range(count))


def _words(served, e2e, unit, ending):
    figures = figures_of(served)
    stats = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    return {f"{word}_{e2e if name == 'e2el' else name}{ending}": unit * figures[f"{name}_{stat}"]
            for name in ("ttft", "tpot", "itl", "e2el") for word, stat in stats.items()}


def _totals(served):
    seconds, outputs, prompts = span(served), sum(o.output for o in served), sum(o.prompt for o in served)
    return {"duration": seconds, "completed": len(served), "total_input_tokens": prompts,
            "total_output_tokens": outputs, "request_throughput": len(served) / seconds,
            "output_throughput": outputs / seconds, "total_token_throughput": (outputs + prompts) / seconds}


def vllm_bench(served, concurrency=None, detailed=True):
    table = {"backend": "vllm", "model_id": "meta-llama/Llama-3.2-1B", "tokenizer_id": "m", "num_prompts": len(served),
             "request_rate": "inf" if concurrency else 250.0, "burstiness": 1.0, "max_concurrency": concurrency,
             **_totals(served), "failed": 0, **_words(served, "e2el", 1e3, "_ms")}
    lists = {"input_lens": [o.prompt for o in served], "output_lens": [o.output for o in served],
             "ttfts": [o.ttft for o in served], "itls": [list(o.gaps) for o in served],
             "latencies": [o.e2e for o in served], "start_times": [77.0 + o.sent for o in served],
             "queue_times": [0.0 for o in served], "errors": ["" for o in served]}
    return json.dumps(table | (lists if detailed else {}))


def sglang_bench(served, concurrency=None, detailed=True):
    table = {"backend": "sglang", "dataset_name": "random", "request_rate": float("inf"),
             "max_concurrency": concurrency, **_totals(served), "total_output_tokens_retokenized": 1,
             **_words(served, "e2e_latency", 1e3, "_ms")}
    lists = {"input_lens": [o.prompt for o in served], "output_lens": [o.output for o in served],
             "ttfts": [o.ttft for o in served], "itls": [list(o.gaps) for o in served], "errors": ["" for o in served]}
    return json.dumps(table | (lists if detailed else {}))


def inferencemax(served, concurrency):
    totals = _totals(served)
    return json.dumps({
        "hw": "h200-cw", "tp": 1, "ep": 1, "dp_attention": "false", "conc": concurrency, "framework": "vllm",
        "model": "meta-llama/Llama-3.2-1B", "precision": "bf16", "isl": served[0].prompt, "osl": served[0].output,
        "tput_per_gpu": totals["total_token_throughput"], "output_tput_per_gpu": totals["output_throughput"],
        "input_tput_per_gpu": totals["total_token_throughput"] - totals["output_throughput"],
        **_words(served, "e2el", 1.0, "")})


def _ns(seconds):
    return round(1e9 * (ORIGIN + seconds))


def aiperf(served, concurrency=None):
    return "".join(json.dumps({
        "metadata": {"session_num": number, "request_start_ns": _ns(one.sent), "benchmark_phase": "profiling",
                     "request_end_ns": _ns(one.sent + one.e2e)},
        "metrics": {"time_to_first_token": {"value": 1e3 * one.ttft, "unit": "ms"},
                    "request_latency": {"value": 1e3 * one.e2e, "unit": "ms"},
                    "input_sequence_length": {"value": one.prompt, "unit": "tokens"},
                    "output_sequence_length": {"value": one.output, "unit": "tokens"},
                    "inter_chunk_latency": {"value": [1e3 * gap for gap in one.gaps], "unit": "ms"}}}) + "\n"
        for number, one in enumerate(served))


def spread(values, scale=1.0, **more):
    stats = {"avg": np.mean(values), "min": np.min(values), "max": np.max(values),
             **{f"p{share}": np.percentile(values, share) for share in (50, 90, 95, 99)}}
    return {**{name: scale * float(value) for name, value in stats.items()}, **more}


def aiperf_summary(served, concurrency=None, **config):
    totals = _totals(served)
    return json.dumps({
        "schema_version": "1.4", "aiperf_version": "0.13.0",
        "request_count": {"unit": "requests", "avg": float(len(served))},
        "time_to_first_token": spread([o.ttft for o in served], 1e3, unit="ms"),
        "inter_token_latency": spread([o.tpot for o in served], 1e3, unit="ms"),
        "request_latency": spread([o.e2e for o in served], 1e3, unit="ms"),
        "input_sequence_length": spread([o.prompt for o in served], unit="tokens"),
        "output_sequence_length": spread([o.output for o in served], unit="tokens"),
        "request_throughput": {"unit": "requests/sec", "avg": totals["request_throughput"]},
        "output_token_throughput": {"unit": "tokens/sec", "avg": totals["output_throughput"]},
        "benchmark_duration": {"unit": "sec", "avg": totals["duration"]},
        "input_config": {"models": {"items": [{"name": "Llama-3.2-1B"}]}, "endpoint": {"type": "chat"},
                         "phases": [{"kind": "profiling", "concurrency": concurrency, **config}]}})


def genai_perf_summary(served, concurrency):
    table = json.loads(aiperf_summary(served))
    del table["aiperf_version"], table["schema_version"]
    config = {"model": ["Llama-3.2-1B"], "endpoint": None, "concurrency": concurrency, "request_rate": None}
    return json.dumps({**table, "input_config": config})


def genai_perf(served, concurrency=None):
    def times(one):
        return [one.sent + one.ttft + gap for gap in np.cumsum([0.0, *one.gaps])]

    def part(text, usage):
        return {"response": "data: " + json.dumps({"choices": [{"delta": {"content": text}}], "usage": usage})}

    requests = [{"timestamp": _ns(one.sent), "response_timestamps": [*map(_ns, times(one)), _ns(one.sent + one.e2e)],
                 "response_outputs": [*(part("a", None) for _ in times(one)), part("", {
                     "prompt_tokens": one.prompt, "completion_tokens": one.output})]} for one in served]
    experiment = {"mode": "concurrency" if concurrency else "request_rate", "value": concurrency or 250}
    return json.dumps({"service_kind": "openai", "endpoint": "v1/chat/completions", "version": "2",
                       "experiments": [{"experiment": experiment, "requests": requests, "window_boundaries": []}]})


def guidellm(served, concurrency=None):
    strategy = {"type_": "concurrent", "streams": concurrency} if concurrency else {"type_": "poisson", "rate": 250.0}
    successful = [{
        "request_start_time": ORIGIN + one.sent, "request_latency": one.e2e, "prompt_tokens": one.prompt,
        "output_tokens": one.output, "time_to_first_token_ms": 1e3 * one.ttft} for one in served]
    return json.dumps({"metadata": {"version": 2}, "benchmarks": [{
        "config": {"strategy": strategy, "backend": {"model": "Llama-3.2-1B"}}, "duration": span(served),
        "metrics": {"request_totals": {"successful": len(served), "errored": 1}},
        "requests": {"successful": successful, "errored": [{}], "incomplete": []}}]})
