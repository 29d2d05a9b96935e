"""`vllm bench serve --save-result` (JSON), with `--save-detailed` request by request.

https://docs.vllm.ai/en/latest/cli/bench/serve.html
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import evolve

from ksim.validation.benchmarks.files import Table, all_latencies, run_of, run_per_table
from ksim.validation.benchmarks.recorded import Recorded

__all__ = ["VllmBench"]

_WORDS = all_latencies(("ttft", "tpot", "itl", "e2el"))


class VllmBench:
    """Reads one run per table; `--append-result` writes several into a file."""

    example = (
        '{"backend": "vllm", "model_id": "m", "tokenizer_id": "m", "num_prompts": 2, "request_rate": 2.0, '
        '"burstiness": 1.0, "max_concurrency": null, "duration": 1.0, "completed": 2, "failed": 0, '
        '"total_input_tokens": 80, "total_output_tokens": 5, "request_throughput": 2.0, "output_throughput": 5.0, '
        '"total_token_throughput": 85.0, "input_lens": [40, 40], "output_lens": [3, 2], "ttfts": [0.02, 0.03], '
        '"itls": [[0.01, 0.01], [0.01]], "start_times": [7.0, 7.5], "mean_ttft_ms": 25.0, "median_ttft_ms": 25.0}'
    )

    def recognises(self, first: Table) -> bool:
        return "request_throughput" in first and "model_id" in first and "total_input_tokens" in first

    def runs(self, path: Path, tables: Sequence[Table]) -> Iterator[Recorded]:
        return run_per_table(path, tables, _run)


def _run(path: Path, table: Table, name: str) -> Recorded:
    if "total_output_tokens" not in table:
        raise table.error("has no total_output_tokens: it is of a benchmark of embeddings, which is not simulated")
    trace = ("its requests came by a trace's timestamps",) if table.get("request_rate") == "trace" else ()
    return evolve(run_of(path, name, "vllm bench serve", table, _WORDS), facts={"model": table.get("model_id")},
                  remarks=trace)
