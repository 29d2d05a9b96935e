"""`ksim trace`: statistics of a trace.

`ksim trace --to`: a trace as a data set for a benchmark client.
"""

import json
from collections import Counter
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer
from attrs import evolve, frozen

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
    JsonFile,
    SkipEmpty,
    Sort,
    TimeUnit,
    Wide,
    columns_of,
    console,
    given,
    say,
    write_json,
)
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.flow.request import Request
    from ksim.workload.datasets import DatasetWriter
    from ksim.workload.replay import Replay


_PANEL = "Data set for a benchmark client"
To = Annotated[str, typer.Option("--to", metavar="FORMAT", rich_help_panel=_PANEL, help="write the requests into the"
                                 " file after -o, as mooncake, vllm-custom or aiperf (see `ksim list datasets`);"
                                 " --block-size is that of its block ids")]
Tokenizer = Annotated[str, typer.Option("--tokenizer", metavar="PATH", rich_help_panel=_PANEL, help="tokenizer.json of"
                                        " the model, or its folder, to count the made-up texts of vllm-custom exactly")]

#: Fields of requests that some format may lack, with their words for notes.
_FIELDS = {"chunks": "block ids", "session": "sessions", "delay": "delays in sessions", "priority": "priorities",
           "tenant": "tenants", "adapter": "adapters", "model": "models", "images": "images", "n": "n",
           "acceptance": "acceptances",
           "max_tokens": "max_tokens", "prompt_logprobs": "prompt_logprobs", "beam_width": "beam searches",
           "aborted": "aborts", "ignore_eos": "ignore_eos"}


@frozen
class DatasetTarget:
    """The data set to write: its format, its file, the options of the format, and whether a drawing was asked for."""

    to: str
    output: Path | None
    block_size: int | None
    tokenizer: str
    drawing: bool

    def writer(self) -> "DatasetWriter":
        """The writer of the format; raises KsimError for one that there is not, or options that it does not take."""
        from ksim.foundation import catalog
        from ksim.foundation.catalog import plugin
        from ksim.foundation.config import Choice
        from ksim.foundation.errors import ConfigError, UnknownName

        if not self.to:
            raise ConfigError("--tokenizer", "is about texts that are made up; add --to vllm-custom -o FILE")
        name = self.to.replace("-", "_")
        known = catalog.names("workload.datasets")
        if ":" not in name and name not in known:
            raise UnknownName("data set", self.to, [one.replace("_", "-") for one in known])
        options = {"block_size": self.block_size, "tokenizer": self.tokenizer or None}
        given = {key: value for key, value in options.items() if value is not None}
        taken = [field.name for field in getattr(catalog.find("workload.datasets", name), "__attrs_attrs__", ())]
        if strange := [f"--{key.replace('_', '-')}" for key in given if key not in taken]:
            raise ConfigError(strange[0], f"is nothing that {self.to} has; leave it out")
        made: DatasetWriter = plugin("workload.datasets", Choice(name, given))
        return made

    def path(self) -> Path:
        """The file to write; raises ConfigError without one, and where a drawing was asked for, too."""
        from ksim.foundation.errors import ConfigError

        if self.drawing:
            raise ConfigError("--to", "writes a data set and draws nothing; leave out --plot and --cache-curve")
        if self.output is None:
            raise ConfigError("--to", "name the file to write: -o FILE")
        return self.output


def write_dataset(replay: "Replay", wanted: DatasetTarget, outcome: Path | None) -> None:
    """Write the requests of *replay* as *wanted*, and say what a user of the file has to know."""
    from ksim.foundation.errors import ConfigError
    from ksim.workload.rows import Ledger

    writer, path, ledger = wanted.writer(), wanted.path(), Ledger()
    timed = bool(replay.clock())
    if writer.times == "needs" and not timed:
        raise ConfigError(f"--to {wanted.to}", f"needs arrival times, and {replay.path} has none; name their column"
                                               " with --columns arrival=..., or write another format")
    lost: Counter[str] = Counter()
    # Without times, any rate will do: it is not written.
    requests = (replay if timed else evolve(replay, rate=1.0)).requests(0, ledger)
    count = _write(path, writer.rows(_counted(requests, writer, lost), timed))
    notes = [*ledger.remarks(), *writer.remarks, *(f"not written: {_FIELDS[name]} of {number:,} requests"
                                                   for name, number in lost.items())]
    console().print(f"{count:,} requests written into {path} as {wanted.to}")
    for note in notes:
        say(f"note: {note}")
    write_json(outcome, {"requests": count, "file": str(path), "format": wanted.to, "notes": notes})


def _counted(requests: "Iterator[Request]", writer: "DatasetWriter", lost: Counter[str]) -> "Iterator[Request]":
    """*requests*; what they have and the format has not is counted in *lost*."""
    from attrs import fields_dict

    from ksim.flow.request import Request

    usual = {name: field.default for name, field in fields_dict(Request).items() if name in _FIELDS}
    for request in requests:
        lost.update(name for name, value in usual.items()
                    if name not in writer.fields and getattr(request, name) != value)
        yield request


def _write(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write *rows* into *path*, a line each, and return their number; a file there is replaced by a whole one."""
    from ksim.foundation.files import replacing

    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count


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
        write_dataset(replay, DatasetTarget(to, output, block_size, tokenizer, cache_curve or plot), outcome)
    elif cache_curve:
        _show_curve(replay, asked, plot, output, outcome)
    else:
        asked.refuse()
        _show(replay, plot, output, outcome)


def _show_curve(replay: "Replay", asked: Asked, plot: bool, output: Path | None, outcome: Path | None) -> None:
    shown, screen = Shown.of(replay, asked), console()
    screen.print(f"\n[bold]{replay.path}[/]: {shown.curve.reuse.requests:,} requests, {replay.recognised} format")
    screen.print(shown.heading())
    for part in shown.parts():
        screen.print(part)
    write_json(outcome, shown.as_json())
    if plot or output is not None:
        drawn = shown.draw(output or Path(f"{replay.path.stem}_cache.png"), replay.path.name)
        screen.print(f"drawn into {drawn}")


def _show(replay: "Replay", plot: bool, output: Path | None, outcome: Path | None) -> None:
    from ksim.workload.replay import MADE_UP
    from ksim.workload.rows import TOGETHER, Ledger
    from ksim.workload.statistics import measure

    unit, ledger = replay.clock(), Ledger()
    if not unit:
        _refuse_plot(plot or output is not None)
    # Without arrival times, any rate will do, because nothing that depends on it is shown.
    requests = replay.requests(0, ledger) if unit else attrs.evolve(replay, rate=1.0).requests(0, ledger)
    statistics = measure(requests, ledger)
    screen = console()
    screen.print(f"\n[bold]{replay.path}[/]: {statistics.requests:,} requests, {replay.recognised} format")
    screen.print(TOGETHER if not unit and replay.path.is_dir() else _span(unit, statistics.arrivals.duration))
    for part in _tables(statistics.table(), timed=bool(unit)):
        screen.print(part)
    for remark in ledger.remarks():
        if not remark.startswith(MADE_UP):
            screen.print(f"note: {remark}")
    write_json(outcome, {"requests": statistics.requests, **_plain(statistics.table(), timed=bool(unit))})
    if plot or output is not None:
        screen.print(f"drawn into {_drawn(replay, output)}")


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
    from ksim.views.figures.studies import trace_chart

    rows = [(r.arrival, r.prompt, r.output) for r in replay.requests(0)]
    arrivals, prompts, outputs = zip(*rows, strict=True)
    path = replay.path
    return trace_chart(arrivals, prompts, outputs, path.name).save(output or Path(f"{path.stem}.png"))


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
