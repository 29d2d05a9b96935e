"""GuideLLM's `benchmarks.json` or `benchmarks.yaml`, request by request; aggregates where requests were not kept.

https://github.com/vllm-project/guidellm
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from ksim.validation.benchmarks.files import PlacedTable, labelled
from ksim.validation.benchmarks.recorded import STATISTICS, ClientLoad, Recorded, RecordedLengths, ServedRequest

__all__ = ["Guidellm"]

#: Its inter-token latency is that of a request, (last - first token) / (tokens - 1): vLLM's TPOT.
_LATENCIES = {"ttft": ("time_to_first_token_ms", 1e-3), "tpot": ("inter_token_latency_ms", 1e-3),
              "e2el": ("request_latency", 1.0)}
_RATES = {"request_throughput": "requests_per_second", "output_throughput": "output_tokens_per_second",
          "total_token_throughput": "tokens_per_second"}


class Guidellm:
    """Reads one run per benchmark of the report: each rate or concurrency of a sweep."""

    example = (
        '{"metadata": {"version": 2}, "benchmarks": [{"type_": "generative_benchmark", "config": {"strategy": '
        '{"type_": "concurrent", "streams": 3}, "backend": {"model": "m"}}, "duration": 0.3, "metrics": {}, '
        '"requests": {"successful": [{"request_start_time": 5.0, "request_end_time": 5.08, "request_latency": '
        '0.08, "prompt_tokens": 40, "output_tokens": 3, "time_to_first_token_ms": 21.0}], "errored": [], '
        '"incomplete": []}}]}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        benchmarks = first.get("benchmarks")
        return isinstance(benchmarks, list) and any(
            isinstance(one, Mapping) and "metrics" in one and "requests" in one for one in benchmarks)

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        for table in tables:
            benchmarks = table.tables("benchmarks")
            for number, benchmark in enumerate(benchmarks):
                yield _run(path, benchmark, labelled(path.stem, number, len(benchmarks)))


def _run(path: Path, table: PlacedTable, name: str) -> Recorded:
    requests = table.branch("requests")
    served = sorted((_served(one) for one in _listed(requests, "successful") if _has_tokens(one)),
                    key=lambda one: one.arrival or 0.0)
    totals = table.branch("metrics", "request_totals")
    known = "successful" in totals
    model = table.branch("config", "backend").get("model") or table.branch("benchmarker", "backend").get("model")
    done = totals.count("successful") if known else len(served)
    kept = len(served) == done
    left = _listed(requests, "incomplete")
    return Recorded(
        path, name, "guidellm", len(served) if kept else done,
        totals.count("errored") if "errored" in totals else len(_listed(requests, "errored")),
        tuple(served) if kept else (), prompts=_lengths(table, "prompt_token_count"),
        outputs=_lengths(table, "output_token_count"), load=_load(table), duration=table.maybe("duration"),
        reported=_reported(table), facts={"model": model} if model else {}, remarks=() if kept else (
            f"the report kept {len(served)} of {done} requests, so its aggregates are compared",),
        incomplete=max(totals.count("incomplete") if "incomplete" in totals else 0, len(left)),
        unfinished=tuple(_unfinished(left, served)) if kept and served else ())


def _listed(requests: PlacedTable, key: str) -> list[PlacedTable]:
    return requests.tables(key) if key in requests else []


def _has_tokens(one: PlacedTable) -> bool:
    return bool(one.maybe("prompt_tokens") and one.maybe("output_tokens"))


def _served(one: PlacedTable) -> ServedRequest:
    start = one.number("request_start_time") if "request_start_time" in one else one.number("start_time")
    timings = one.branch("info", "timings")
    ttft = one.maybe("time_to_first_token_ms")
    last = timings.maybe("last_token_iteration")
    # Its latency ends with the response; tokens end with the last of them.
    end = last - start if last else one.number("request_latency")
    arrival = timings.maybe("targeted_start") if "targeted_start" in timings else start
    return ServedRequest(one.count("prompt_tokens"), one.count("output_tokens"), None if ttft is None else ttft / 1e3,
                         end, min(arrival or start, start), start)


def _unfinished(left: Sequence[PlacedTable], served: Sequence[ServedRequest]) -> Iterator[ServedRequest]:
    """Requests that were under way when the run ended, as far as they were sent.

    What is not known of one is the mean of those *served*: none of them would have been shorter than it was then.
    """
    prompt, output = (max(1, round(mean(lengths))) for lengths in (
        [one.prompt for one in served], [one.output for one in served]))
    for one in left:
        timings = one.branch("info", "timings")
        start = one.maybe("request_start_time") or one.maybe("start_time") or timings.maybe("request_start")
        if start:
            due = timings.maybe("targeted_start") or start
            yield ServedRequest(int(one.maybe("prompt_tokens") or prompt),
                                max(int(one.maybe("output_tokens") or 0), output), arrival=min(due, start), sent=start)


def _load(table: PlacedTable) -> ClientLoad:
    strategy = table.branch("config", "strategy")
    strategy = strategy if strategy.values else table.branch("scheduler", "strategy")
    kind = str(strategy.get("type_"))
    if kind == "synchronous":
        return ClientLoad(concurrency=1)
    if kind in ("concurrent", "throughput"):
        streams = strategy.maybe("streams") or strategy.maybe("max_concurrency")
        return ClientLoad(concurrency=int(streams) if streams else None)
    return ClientLoad(strategy.maybe("rate") or None, burstiness=1e6 if kind == "constant" else 1.0)


def _lengths(table: PlacedTable, key: str) -> RecordedLengths | None:
    summary = table.branch("metrics", key, "successful")
    if "mean" not in summary:
        return None
    shares = summary.branch("percentiles")
    quantiles = {int(name[1:]) / 100: shares.number(name) for name in shares.values
                 if name in ("p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99")}
    ends = {0.0: summary.number("min"), 1.0: summary.number("max")}
    return RecordedLengths(summary.number("mean"), ends | quantiles)


def _reported(table: PlacedTable) -> dict[str, float]:
    figures = {}
    for latency, (key, seconds) in _LATENCIES.items():
        summary = table.branch("metrics", key, "successful")
        shares = summary.branch("percentiles")
        for statistic in STATISTICS:
            source = summary if statistic == "mean" else shares
            if statistic in source:
                figures[f"{latency}_{statistic}"] = seconds * source.number(statistic)
    return figures | {ours: table.branch("metrics", theirs, "successful").number("mean")
                      for ours, theirs in _RATES.items() if "mean" in table.branch("metrics", theirs, "successful")}
