"""Shapes that results of several clients share: lists with an entry per request, and named statistics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from math import isinf
from pathlib import Path

from ksim.foundation.units import LONGEST
from ksim.validation.benchmarks.files import Table
from ksim.validation.benchmarks.recorded import LATENCIES, RATES, STATISTICS, Lengths, Load, Recorded, Served

#: Seconds in a unit of time.
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}
_WORDS = {"mean": ("mean",), "p50": ("median", "p50")}


def worded(table: Table, latencies: Mapping[str, str], ending: str, seconds: float) -> dict[str, float]:
    """Statistics under keys such as ``median_ttft_ms``; *latencies* has the client's word for each of ours."""
    figures = {}
    for latency, word in latencies.items():
        for statistic in STATISTICS:
            keys = [f"{name}_{word}{ending}" for name in _WORDS.get(statistic, (statistic,))]
            key = next((key for key in keys if key in table), None)
            if key:
                figures[f"{latency}_{statistic}"] = seconds * table.number(key)
    return figures


def throughputs(table: Table) -> dict[str, float]:
    """The rates that *table* reports under the names of `vllm bench serve`."""
    return {name: table.number(name) for name in RATES if name in table}


def rate_of(table: Table, key: str = "request_rate") -> float | None:
    """The rate at *key*; None for an infinite one, which clients write as "inf", Infinity or a negative number."""
    value = table.get(key)
    if value is None or value in ("inf", "Infinity", "trace") or (isinstance(value, float) and isinf(value)):
        return None
    rate = table.number(key, least=None)
    return rate if rate > 0 else None


def concurrency_of(table: Table, key: str) -> int | None:
    """The concurrency at *key*; None where there is none, or 0 stands for it."""
    return (table.count(key) or None) if key in table else None


def columns(table: Table) -> tuple[list[Served], int]:
    """The answered requests of lists with an entry per request, as vLLM's and SGLang's clients write them.

    The second value is how many requests failed: they have an error, or no output.
    """
    prompts, outputs, ttfts = (table.numbers(name) for name in ("input_lens", "output_lens", "ttfts"))
    gaps = table.items("itls") if "itls" in table else [[]] * len(prompts)
    errors = table.items("errors") if "errors" in table else [""] * len(prompts)
    optional = {name: table.some_numbers(name) if name in table else None
                for name in ("latencies", "start_times", "queue_times", "server_queue_times")}
    given = {"output_lens": outputs, "ttfts": ttfts, "itls": gaps, "errors": errors, **optional}
    for name, values in given.items():
        if values is not None and len(values) != len(prompts):
            raise table.error(f"{name} has {len(values)} entries, but input_lens has {len(prompts)}; is the file of one"
                              f" run?")
    served, failed = [], 0
    rows = zip(prompts, outputs, ttfts, gaps, errors, *(values or repeat(None) for values in optional.values()),
               strict=False)
    for prompt, output, ttft, row_gaps, error, latency, start, queued, server in rows:
        if error or not output or not prompt:
            failed += 1
            continue
        between = _gaps(table, row_gaps)
        served.append(Served(
            int(prompt), int(output), ttft, ttft + sum(between) if latency is None else latency,
            arrival=None if start is None else start - (queued or 0.0), sent=start, queue=server, gaps=between))
    return served, failed


def run_of(path: Path, name: str, tool: str, table: Table, latencies: Mapping[str, str]) -> Recorded:
    """The run in a *table* that vLLM's or SGLang's client wrote; *latencies* has the client's words for ours."""
    detailed = "input_lens" in table and "ttfts" in table
    served, failed = columns(table) if detailed else ([], 0)
    done = len(served) if detailed else table.count("completed")
    return Recorded(
        path, name, tool, done, max(failed, table.count("failed") if "failed" in table else 0), served,
        prompts=mean_lengths(table, "total_input_tokens", done),
        outputs=mean_lengths(table, "total_output_tokens", done),
        load=Load(rate_of(table), concurrency_of(table, "max_concurrency"), table.maybe("burstiness") or 1.0),
        duration=table.maybe("duration"), reported={**worded(table, latencies, "_ms", 1e-3), **throughputs(table)})


def _gaps(table: Table, values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(gap, int | float) and 0 <= gap < LONGEST for gap in values):
        raise table.error("itls holds something else than a list of numbers for each request, in seconds")
    return tuple(values)


def with_units(table: Table, names: Mapping[str, str]) -> dict[str, float]:
    """Statistics in tables with a `unit`, such as ``{"unit": "ms", "avg": 1.0, "p50": 0.9}``; *names* has their keys.

    Raises DataError for a unit that is none of time.
    """
    figures: dict[str, float] = {}
    for latency, key in names.items():
        if not isinstance(table.get(key), Mapping):
            continue
        inner = table.inner(key)
        unit = str(inner.get("unit"))
        if unit not in SECONDS:
            raise inner.error(f"unit is {unit!r}; expected one of {', '.join(SECONDS)}")
        figures |= {f"{latency}_{name}": SECONDS[unit] * inner.number(word) for name in STATISTICS
                    if (word := "avg" if name == "mean" else name) in inner}
    return figures


def averages(table: Table, names: Mapping[str, str]) -> dict[str, float]:
    """The `avg` of the tables at the keys in *names*, by our names."""
    return {ours: table.inner(key).number("avg") for ours, key in names.items()
            if isinstance(table.get(key), Mapping) and "avg" in table.inner(key)}


def lengths_of(table: Table) -> Lengths:
    """Lengths from a table with `avg` (or `mean`), `min`, `max` and percentiles such as `p90`."""
    mean = table.number("avg") if "avg" in table else table.number("mean")
    shares = {"min": 0.0, "max": 1.0, **{f"p{share}": share / 100 for share in (1, 5, 10, 25, 50, 75, 90, 95, 99)}}
    return Lengths(mean, {share: table.number(name) for name, share in shares.items() if name in table})


def mean_lengths(table: Table, key: str, requests: int) -> Lengths:
    """Lengths of *requests* of which only the sum at *key* is known."""
    return Lengths(table.number(key) / max(requests, 1))


def run_per_table(path: Path, tables: Sequence[Table],
                  run: Callable[[Path, Table, str], Recorded]) -> Iterator[Recorded]:
    """The *run* of each table, which has a number in its name where there are several."""
    for number, table in enumerate(tables):
        yield run(path, table, labelled(path.stem, number, len(tables)))


def labelled(name: str, number: int, of: int) -> str:
    """The name of run *number* in a file of *of* runs."""
    return name if of == 1 else f"{name} #{number + 1}"


def all_latencies(words: Sequence[str]) -> dict[str, str]:
    """Our latencies with a client's words for them."""
    return dict(zip(LATENCIES, words, strict=True))
