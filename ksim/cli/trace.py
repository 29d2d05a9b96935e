"""`ksim trace`: what a trace holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ksim.cli.screen import table


def trace(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="trace file, gzipped or not")],
    trace_format: Annotated[str, typer.Option("--format", help="format, where it is not recognised")] = "",
    chunk_tokens: Annotated[int | None, typer.Option(help="tokens to a block id, where not the format's own")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="read a trace that is out of order into memory")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="draw the trace")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="PNG file to draw into, by default named as the"
                                                " trace, in this directory")] = None,
) -> None:
    """Say what a trace holds: counts, rates, lengths, burstiness, shared prefixes."""
    from ksim.cli.screen import console
    from ksim.foundation.config import structure
    from ksim.workload.ledger import Ledger
    from ksim.workload.reading import recognise
    from ksim.workload.replay import Replay
    from ksim.workload.statistics import measure

    replay = structure(Replay, {"path": path, "format": trace_format, "chunk_tokens": chunk_tokens, "sort": sort},
                       "trace")
    ledger = Ledger()
    statistics = measure(replay.requests(0, ledger), ledger)
    screen = console()
    screen.print(f"\n[bold]{path}[/]: {statistics.requests:,} requests, {trace_format or recognise(path)} format")
    for part in _tables(statistics.table()):
        screen.print(part)
    for remark in ledger.remarks():
        screen.print(f"note: {remark}")
    if plot or output is not None:
        from ksim.results.plots import plot_trace

        rows = [(r.arrival, r.prompt, r.output) for r in replay.requests(0)]
        arrivals, prompts, outputs = zip(*rows, strict=True)
        drawn = plot_trace(output or Path(f"{path.stem}.png"), arrivals, prompts, outputs, path.name)
        screen.print(f"drawn into {drawn}")


def _tables(groups: dict[str, dict[str, float]]) -> Iterator[Table]:
    """Groups that have the same columns make one table; what the ledger says is printed as notes."""
    lengths = {name: groups[name] for name in ("prompt", "output", "total")}
    yield _grid("tokens", lengths)
    titles = {"arrivals": "arrivals (s, requests/s)", "sharing": "shared prefixes", "turns": "sessions"}
    for name, title in titles.items():
        if name in groups:
            yield _grid(title, {"": groups[name]})


def _grid(title: str, rows: dict[str, dict[str, float]]) -> Table:
    columns = next(iter(rows.values()))
    made = table(title, *(f">{name.replace('_', ' ')}" for name in columns))
    for name, numbers in rows.items():
        made.add_row(name, *map(_shown, numbers.values()))
    return made


def _shown(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
