"""`ksim trace`: statistics of a trace."""

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from ksim.cli.cache_curve import (
    Asked,
    BlockSize,
    CacheSizes,
    CurveFlag,
    KvCacheDtype,
    Model,
    Shown,
    TensorParallel,
    Tiers,
)
from ksim.cli.flags import (
    ChunkTokens,
    Columns,
    Format,
    SkipEmpty,
    Sort,
    TimeUnit,
    columns_of,
    given,
)
from ksim.cli.output import JsonFile, Wide, console, write_json
from ksim.cli.trace_to import To, Tokenizer, Wanted, write_dataset
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.workload.replay import Replay


def trace(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="trace file, gzipped or not, or a folder of sessions")],
    trace_format: Format = "", columns: Columns = None, time_unit: TimeUnit = None, chunk_tokens: ChunkTokens = None,
    sort: Sort = False, skip_empty: SkipEmpty = False,
    plot: Annotated[bool, typer.Option("--plot", help="draw the trace, or its cache curve")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="PNG file to draw, by default in this directory"
                                                " with the name of the trace; with --to, the file to write")] = None,
    outcome: JsonFile = None, wide: Wide = False,
    cache_curve: CurveFlag = False, block_size: BlockSize = None, cache_sizes: CacheSizes = "", tier: Tiers = None,
    model: Model = "", kv_cache_dtype: KvCacheDtype = None, tensor_parallel_size: TensorParallel = None,
    to: To = "", tokenizer: Tokenizer = "",
) -> None:
    """Show what a trace contains: counts, rates, lengths, burstiness, shared prefixes; or what a prefix cache hits.

    With --to, write it as a data set for a benchmark client.
    """
    from ksim.foundation.config import structure
    from ksim.workload.replay import Replay

    reading = {"path": str(path), "format": trace_format, "columns": columns_of(columns), "time_unit": time_unit,
               "chunk_tokens": chunk_tokens, "sort": sort, "empty": "skip" if skip_empty else None}
    replay = structure(Replay, given(reading), "trace")
    asked = Asked(block_size, cache_sizes, tier or (), model, kv_cache_dtype, tensor_parallel_size)
    if to or tokenizer:
        write_dataset(replay, Wanted(to, output, block_size, tokenizer, cache_curve or plot), outcome)
    elif cache_curve:
        _show_curve(replay, asked, plot, output, outcome)
    else:
        asked.refuse()
        _show(replay, plot, output, outcome)


def _show_curve(replay: "Replay", asked: Asked, plot: bool, output: Path | None, outcome: Path | None) -> None:
    shown, screen = Shown.of(replay, asked), console()
    screen.print(f"\n[bold]{replay.path}[/]: {shown.curve.reuse.requests:,} requests, {_format(replay)} format")
    screen.print(shown.heading())
    for part in shown.parts():
        screen.print(part)
    write_json(outcome, shown.as_json())
    if plot or output is not None:
        drawn = shown.draw(output or Path(f"{replay.path.stem}_cache.png"), replay.path.name)
        screen.print(f"drawn into {drawn}")


def _show(replay: "Replay", plot: bool, output: Path | None, outcome: Path | None) -> None:
    from ksim.workload.reading import TOGETHER
    from ksim.workload.replay import MADE_UP
    from ksim.workload.row import Ledger
    from ksim.workload.statistics import measure

    unit, ledger = replay.clock(), Ledger()
    if not unit:
        _refuse_plot(plot or output is not None)
    # Without arrival times, any rate will do, because nothing that depends on it is shown.
    requests = replay.requests(0, ledger) if unit else attrs.evolve(replay, rate=1.0).requests(0, ledger)
    statistics = measure(requests, ledger)
    screen = console()
    screen.print(f"\n[bold]{replay.path}[/]: {statistics.requests:,} requests, {_format(replay)} format")
    screen.print(TOGETHER if not unit and replay.path.is_dir() else _span(unit, statistics.arrivals.duration))
    for part in _tables(statistics.table(), timed=bool(unit)):
        screen.print(part)
    for remark in ledger.remarks():
        if not remark.startswith(MADE_UP):
            screen.print(f"note: {remark}")
    write_json(outcome, {"requests": statistics.requests, **_plain(statistics.table(), timed=bool(unit))})
    if plot or output is not None:
        screen.print(f"drawn into {_drawn(replay, output)}")


def _format(replay: "Replay") -> str:
    from ksim.workload.reading import recognise

    return replay.format.name or ("plain" if replay.columns else recognise(replay.path))


def _span(unit: str, duration: float) -> str:
    """The unit of the arrival times and the time that they span, in which a wrong unit shows."""
    if not unit:
        return "no arrival times: to replay it, set --request-rate"
    read = "dates" if unit == "dates" else f"in {unit} (--time-unit changes it)"
    return f"arrival times are {read}: from first to last {_spelled(duration)}"


def _spelled(duration: float) -> str:
    """A duration in its two largest units, such as 41 days 3 h."""
    left, parts = duration, []
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if duration >= size:
            parts.append(f"{left // size:,.0f} {unit}")
            left %= size
    return " ".join(parts[:2]) if len(parts) > 1 else " ".join([*parts, f"{left:.4g} s"])


def _refuse_plot(wanted: bool) -> None:
    from ksim.foundation.errors import ConfigError

    if wanted:
        raise ConfigError("--plot", "draws arrivals, and this trace has no arrival times; leave it out")


def _drawn(replay: "Replay", output: Path | None) -> Path:
    from ksim.report.plots import plot_trace

    rows = [(r.arrival, r.prompt, r.output) for r in replay.requests(0)]
    arrivals, prompts, outputs = zip(*rows, strict=True)
    path = replay.path
    return plot_trace(output or Path(f"{path.stem}.png"), arrivals, prompts, outputs, path.name)


def _tables(groups: dict[str, dict[str, float]], timed: bool) -> Iterator[Table]:
    """A table for each set of groups with the same columns; the ledger's remarks are printed as notes."""
    lengths = {name: groups[name] for name in ("prompt", "output", "total")}
    yield _grid("tokens", lengths)
    titles = {"arrivals": "arrivals (s, requests/s)", "sharing": "shared prefixes", "turns": "sessions"}
    for name, title in titles.items():
        if name in groups and (timed or name != "arrivals"):
            yield _grid(title, {"": groups[name]})


def _plain(groups: dict[str, dict[str, float]], timed: bool) -> dict[str, dict[str, float | None]]:
    """The same for JSON, which has no NaN; arrivals that were made up are left out."""
    return {group: {name: None if isnan(value) else value for name, value in numbers.items()}
            for group, numbers in groups.items() if timed or group != "arrivals"}


def _grid(title: str, rows: dict[str, dict[str, float]]) -> Table:
    columns = next(iter(rows.values()))
    made = Table.of(title, *(f">{name.replace('_', ' ')}" for name in columns))
    for name, numbers in rows.items():
        made.add_row(name, *map(_shown, numbers.values()))
    return made


def _shown(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
