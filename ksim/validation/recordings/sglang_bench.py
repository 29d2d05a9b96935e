"""SGLang's `bench_serving` (JSON lines), with `--output-details` request by request; arrivals are not recorded.

https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve

from ksim.validation.benchmarks.files import Table, all_latencies, run_of, run_per_table
from ksim.validation.benchmarks.recorded import Recorded

__all__ = ["SglangBench"]

_WORDS = all_latencies(("ttft", "tpot", "itl", "e2e_latency"))


class SglangBench:
    """Reads one run per line; the client appends a line per run."""

    example = (
        '{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity, "max_concurrency": 4, '
        '"duration": 2.0, "completed": 3, "total_input_tokens": 90, "total_output_tokens": 30, '
        '"total_output_tokens_retokenized": 30, "request_throughput": 1.5, "input_throughput": 45.0, '
        '"output_throughput": 15.0, "mean_e2e_latency_ms": 80.0, "median_e2e_latency_ms": 79.0, "mean_ttft_ms": '
        '20.0, "median_ttft_ms": 19.0, "p99_ttft_ms": 25.0, "mean_tpot_ms": 6.0, "median_tpot_ms": 6.0, '
        '"mean_itl_ms": 6.0, "p95_itl_ms": 7.0, "concurrency": 0.12}'
    )

    def recognises(self, first: Table) -> bool:
        return "mean_e2e_latency_ms" in first and "completed" in first and "total_input_tokens" in first

    def runs(self, path: Path, tables: Sequence[Table]) -> Iterator[Recorded]:
        return run_per_table(path, tables, _run)


def _run(path: Path, table: Table, name: str) -> Recorded:
    run = run_of(path, name, "SGLang bench_serving", table, _WORDS)
    tokens = table.number("total_input_tokens") + table.number("total_output_tokens")
    rate = {"total_token_throughput": tokens / run.duration} if run.duration else {}
    facts = {"model": table.get("model_id") or table.branch("server_info").get("model_path"),
             "tp": table.branch("server_info").get("tp_size")}
    return evolve(run, reported={**run.reported, **rate},
                  facts={key: value for key, value in facts.items() if value is not None})
