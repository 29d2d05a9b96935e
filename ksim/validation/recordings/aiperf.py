"""AIPerf's `profile_export.jsonl` (request by request), or `profile_export_aiperf.json` (aggregates).

https://github.com/ai-dynamo/aiperf
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.files import (
    SECONDS,
    PlacedTable,
    averages,
    concurrency_of,
    lengths_of,
    rate_of,
    tables_of,
    with_units,
)
from ksim.validation.benchmarks.recorded import ClientLoad, Recorded, ServedRequest

__all__ = ["Aiperf"]

#: Its inter-token latency is that of a request, (latency - TTFT) / (tokens - 1): vLLM's TPOT.
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency",
              "e2el": "request_latency"}
_RATES = {"request_throughput": "request_throughput", "output_throughput": "output_token_throughput",
          "total_token_throughput": "total_token_throughput"}
_SUMMARY = "profile_export_aiperf.json"


class Aiperf:
    """Reads one run per file; with the summary beside it, the file of requests has its load, too."""

    example = (
        '{"metadata": {"session_num": 0, "request_start_ns": 1000000000, "request_end_ns": 1084000000, '
        '"benchmark_phase": "profiling"}, "metrics": {"time_to_first_token": {"value": 28.0, "unit": "ms"}, '
        '"request_latency": {"value": 84.0, "unit": "ms"}, "input_sequence_length": {"value": 40, "unit": '
        '"tokens"}, "output_sequence_length": {"value": 3, "unit": "tokens"}, "inter_chunk_latency": {"value": '
        '[28.0, 28.0], "unit": "ms"}}}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        return ("metadata" in first and "metrics" in first and "request_start_ns" in first.branch("metadata")) or (
            "request_latency" in first and ("aiperf_version" in first or _nested(first)))

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        if "metrics" in tables[0]:
            yield _detailed(path, tables)
        else:
            yield from (_aggregates(path, table) for table in tables)


def _nested(table: PlacedTable) -> bool:
    return isinstance(table.branch("input_config").get("endpoint"), Mapping)


def _detailed(path: Path, tables: Sequence[PlacedTable]) -> Recorded:
    served, failed = [], 0
    for table in tables:
        if table.inner("metadata").get("benchmark_phase") not in (None, "profiling"):
            continue
        one = None if table.get("error") else _served(table)
        failed += one is None
        served += [one] if one else []
    summary = _summary(path)
    load, facts = _settings(summary) if summary else (ClientLoad(), {})
    remarks = () if summary else (f"{_SUMMARY} is not beside it, so requests are sent at their recorded times",)
    return Recorded(path, path.stem, "aiperf", len(served), failed, tuple(sorted(served, key=_arrival)), load=load,
                    facts=facts, remarks=remarks)


def _arrival(one: ServedRequest) -> float:
    return one.arrival or 0.0


def _served(table: PlacedTable) -> ServedRequest | None:
    """The request of a line; None for one without tokens."""
    times, metrics = table.inner("metadata"), table.inner("metrics")
    prompt, output = (_value(metrics, key) for key in ("input_sequence_length", "output_sequence_length"))
    if not prompt or not output:
        return None
    sent = times.number("request_start_ns") / 1e9
    ttft = _value(metrics, "time_to_first_token")
    chunks = metrics.branch("inter_chunk_latency")
    unit = _seconds(chunks) if "value" in chunks else 1.0
    return ServedRequest(int(prompt), int(output), ttft, _value(metrics, "request_latency"),
                         times.number("credit_issued_ns") / 1e9 if "credit_issued_ns" in times else sent, sent,
                         gaps=tuple(unit * gap for gap in chunks.numbers("value")) if "value" in chunks else ())


def _value(metrics: PlacedTable, key: str) -> float | None:
    """A metric's value, in seconds if it is a time."""
    table = metrics.branch(key)
    if "value" not in table:
        return None
    return table.number("value") * (1.0 if table.get("unit") == "tokens" else _seconds(table))


def _seconds(table: PlacedTable) -> float:
    unit = str(table.get("unit"))
    if unit not in SECONDS:
        raise table.error(f"unit is {unit!r}; expected one of {', '.join(SECONDS)}")
    return SECONDS[unit]


def _summary(path: Path) -> PlacedTable | None:
    beside = path.with_name(_SUMMARY)
    try:
        return next(iter(tables_of(beside)), None) if beside.is_file() else None
    except DataError:
        return None


def _settings(table: PlacedTable) -> tuple[ClientLoad, dict[str, Any]]:
    """The load and the model of its `input_config`, as its versions since 0.10 write it, and those before."""
    config = table.branch("input_config")
    models = config.branch("models")
    names = config.branch("endpoint").get("model_names") or [
        one.get("name") for one in (models.tables("items") if "items" in models else ())]
    phases = [phase for phase in (config.tables("phases") if "phases" in config else ())
              if phase.get("kind") in (None, "profiling")]
    phase = phases[-1] if phases else config.branch("loadgen")
    rate = rate_of(phase, "rate") or rate_of(phase, "request_rate")
    smooth = phase.maybe("smoothness") or phase.maybe("arrival_smoothness")
    even = 1e6 if phase.get("type") == "constant" else 1.0
    load = ClientLoad(rate, concurrency_of(phase, "concurrency"), smooth or even)
    return load, {"model": names[0]} if isinstance(names, list) and names and names[0] else {}


def _aggregates(path: Path, table: PlacedTable) -> Recorded:
    counts = averages(table, {"done": "request_count", "failed": "error_request_count",
                              "seconds": "benchmark_duration"})
    done, failed = (round(counts.get(name, 0)) for name in ("done", "failed"))
    load, facts = _settings(table)
    prompts, outputs = (lengths_of(table.inner(f"{side}_sequence_length")) for side in ("input", "output"))
    return Recorded(path, path.stem, "aiperf", done, failed, prompts=prompts, outputs=outputs, load=load,
                    duration=counts.get("seconds"), facts=facts,
                    reported={**with_units(table, _LATENCIES), **averages(table, _RATES)})
