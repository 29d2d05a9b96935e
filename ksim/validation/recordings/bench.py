"""Results of the engines' own benchmark clients, and spans."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve

from ksim.validation.benchmarks.files import PlacedTable, all_latencies, run_of, run_per_table
from ksim.validation.benchmarks.recorded import Recorded, ServedRequest
from ksim.workload.traces.otel import Otel as Trace
from ksim.workload.traces.otel import RequestSpan, has_spans, request_spans

__all__ = ["VllmBench", "SglangBench", "Otel"]


_WORDS = all_latencies(("ttft", "tpot", "itl", "e2el"))


class VllmBench:
    """`vllm bench serve --save-result` (JSON), with `--save-detailed` request by request.

    https://docs.vllm.ai/en/latest/cli/bench/serve.html

    Reads one run per table; `--append-result` writes several into a file.
    """

    example = (
        '{"backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": 2, "request_rate": 2.0, '
        '"burstiness": 1.0, "max_concurrency": null, "duration": 1.0, "completed": 2, "failed": 0, '
        '"total_input_tokens": 80, "total_output_tokens": 5, "request_throughput": 2.0, "output_throughput": 5.0, '
        '"total_token_throughput": 85.0, "input_lens": [40, 40], "output_lens": [3, 2], "ttfts": [0.02, 0.03], '
        '"itls": [[0.01, 0.01], [0.01]], "start_times": [7.0, 7.5], "mean_ttft_ms": 25.0, "median_ttft_ms": 25.0}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        return "request_throughput" in first and "model_id" in first and "total_input_tokens" in first

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        return run_per_table(path, tables, _run)


def _run(path: Path, table: PlacedTable, name: str) -> Recorded:
    if "total_output_tokens" not in table:
        raise table.error("has no total_output_tokens: it is of a benchmark of embeddings, which is not simulated")
    trace = ("its requests came by a trace's timestamps",) if table.get("request_rate") == "trace" else ()
    return evolve(run_of(path, name, "vllm bench serve", table, _WORDS), facts={"model": table.get("model_id")},
                  remarks=trace)


_SGLANG_BENCH_WORDS = all_latencies(("ttft", "tpot", "itl", "e2e_latency"))


class SglangBench:
    """SGLang's `bench_serving` (JSON lines), with `--output-details` request by request; arrivals are not recorded.

    https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py

    Reads one run per line; the client appends a line per run.
    """

    example = (
        '{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": 4, '
        '"duration": 2.0, "completed": 3, "total_input_tokens": 90, "total_output_tokens": 30, '
        '"total_output_tokens_retokenized": 30, "request_throughput": 1.5, "input_throughput": 45.0, '
        '"output_throughput": 15.0, "mean_e2e_latency_ms": 80.0, "median_e2e_latency_ms": 79.0, "mean_ttft_ms": '
        '20.0, "median_ttft_ms": 19.0, "p99_ttft_ms": 25.0, "mean_tpot_ms": 6.0, "median_tpot_ms": 6.0, '
        '"mean_itl_ms": 6.0, "p95_itl_ms": 7.0, "concurrency": 0.12}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        return "mean_e2e_latency_ms" in first and "completed" in first and "total_input_tokens" in first

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        return run_per_table(path, tables, _run_of_sglang)


def _run_of_sglang(path: Path, table: PlacedTable, name: str) -> Recorded:
    run = run_of(path, name, "SGLang bench_serving", table, _SGLANG_BENCH_WORDS)
    tokens = table.number("total_input_tokens") + table.number("total_output_tokens")
    rate = {"total_token_throughput": tokens / run.duration} if run.duration else {}
    facts = {"model": table.get("model_id") or table.branch("server_info").get("model_path"),
             "tp": table.branch("server_info").get("tp_size")}
    return evolve(run, reported={**run.reported, **rate},
                  facts={key: value for key, value in facts.items() if value is not None})


class Otel:
    """vLLM's OpenTelemetry spans (OTLP's JSON or Jaeger's), with the server's own TTFT, latency and time in the queue.

    https://docs.vllm.ai/en/latest/examples/online_serving/opentelemetry.html

    Reads all spans of a file as one run; latencies are those at the server, without client and network.
    """

    example = Trace.example

    def recognises(self, first: PlacedTable) -> bool:
        return has_spans(first.values)

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        spans = [span for table in tables for span in request_spans(table.values, table.error)]
        done = sorted((span for span in spans if span.output and span.prompt), key=lambda span: span.start)
        several = sum(span.n > 1 for span in done)
        remarks = ("latencies are those at the server: client and network are not in them",
                   *((f"{several} spans are of one of several sequences, each of which is simulated as a request",)
                     if several else ()))
        yield Recorded(path, path.stem, "vLLM's spans", len(done), len(spans) - len(done),
                       tuple(_served(span, done[0].start) for span in done), remarks=remarks)


def _served(span: RequestSpan, first: int) -> ServedRequest:
    start = (span.start - first) / 1e9
    return ServedRequest(span.prompt, span.output, span.ttft, span.e2e, arrival=start, sent=start, queue=span.queue)
