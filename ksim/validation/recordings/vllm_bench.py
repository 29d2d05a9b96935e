"""`vllm bench serve --save-result` (JSON), with `--save-detailed` request by request.

https://docs.vllm.ai/en/latest/cli/bench/serve.html
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ksim.validation.benchmarks.files import Table
from ksim.validation.benchmarks.recorded import Load, Recorded
from ksim.validation.benchmarks.shapes import (
    all_latencies,
    columns,
    concurrency_of,
    labelled,
    mean_lengths,
    rate_of,
    throughputs,
    worded,
)

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
        for number, table in enumerate(tables):
            yield _run(path, table, labelled(path.stem, number, len(tables)))


def _run(path: Path, table: Table, name: str) -> Recorded:
    if "total_output_tokens" not in table:
        raise table.error("has no total_output_tokens: it is of a benchmark of embeddings, which is not simulated")
    detailed = "input_lens" in table and "ttfts" in table
    served, failed = columns(table) if detailed else ([], 0)
    done = len(served) if detailed else table.count("completed")
    trace = ("its requests came by a trace's timestamps",) if table.get("request_rate") == "trace" else ()
    return Recorded(
        path, name, "vllm bench serve", done, max(failed, table.count("failed") if "failed" in table else 0), served,
        prompts=mean_lengths(table, "total_input_tokens", done),
        outputs=mean_lengths(table, "total_output_tokens", done),
        load=Load(rate_of(table), concurrency_of(table, "max_concurrency"), table.maybe("burstiness") or 1.0),
        duration=table.maybe("duration"), reported={**worded(table, _WORDS, "_ms", 1e-3), **throughputs(table)},
        facts={"model": table.get("model_id")}, remarks=trace)
