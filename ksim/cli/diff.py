"""`ksim diff`: what changed from one run to another, and which phases explain how latencies differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import frozen

from ksim.cli.explain import Figures, Json
from ksim.foundation.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ksim.results.arrays import Floats
    from ksim.results.attribution.breakdown import Breakdown

Run = Annotated[Path, typer.Argument(help="directory that `ksim run -o` has written")]
Pairs = dict[str, "tuple[Floats, Floats]"]


def diff(
    run_a: Run, run_b: Run,
    request: Annotated[int | None, typer.Option(metavar="ID", help="one request of both runs; by default all that"
                                                " completed in both")] = None,
    json_file: Json = None, output: Figures = None,
) -> None:
    """Compare two runs: settings, throughput, latency, cache, energy, cost, and where requests' time went."""
    from ksim.cli.diff_table import content, shown
    from ksim.cli.phase_tables import write_json
    from ksim.cli.screen import console
    from ksim.report.comparison import Whole

    runs = Whole.read(run_a), Whole.read(run_b)
    found, problem = _phases(run_a, run_b, request)
    if request is None:
        for part in (f"\n[bold]{run_a}[/] to [bold]{run_b}[/]", *shown(*runs)):
            console().print(part)
    written = {"runs": [str(run_a), str(run_b)], "request": request, **content(*runs)}
    if found is None:
        console().print(f"! where requests' time went is not compared: {problem}", markup=False)
    else:
        pairs, names = found.pairs, found.pair[0].names
        _show(found.pair, found.whole, request, pairs)
        written |= {"completed": [len(run.ids) for run in found.whole], "in_both": len(found.pair[0].ids),
                    "times": {key: _content(names, *pair) for key, pair in pairs.items()}}
        _draw(output, f"From {run_a.name} to {run_b.name}", _heading(found.pair[0], request), pairs, names)
    write_json(json_file, written)


@frozen(eq=False)
class _Phases:
    """The phases of two `whole` runs, those of requests that completed in both as a `pair`, and what is compared."""

    whole: "tuple[Breakdown, Breakdown]"
    pair: "tuple[Breakdown, Breakdown]"
    pairs: Pairs


def _phases(run_a: Path, run_b: Path, request: int | None) -> tuple[_Phases | None, str]:
    """The phases of both runs, or why they cannot be compared; for one *request* that is an error."""
    from ksim.results.attribution.breakdown import Breakdown, paired

    try:
        whole = Breakdown.read(run_a), Breakdown.read(run_b)
        if request is not None:
            for run in whole:
                run.place(request)
        pair = paired(*whole)
    except DataError:
        raise
    except ConfigError as error:
        if request is not None:
            raise
        return None, str(error)
    one, other = (run.statistics() if request is None else run.of(request) for run in pair)
    return _Phases(whole, pair, {key: (one[key], other[key]) for key in one if key in other}), ""


def _content(names: list[str], first: "Floats", second: "Floats") -> dict[str, Any]:
    from ksim.cli.phase_tables import by_phase

    return {"first": by_phase(names, first), "second": by_phase(names, second),
            "change": by_phase(names, second - first)}


def _heading(run: "Breakdown", request: int | None) -> str:
    return f"{len(run.ids):,} requests that completed in both" if request is None else f"request {request}"


def _show(runs: "tuple[Breakdown, Breakdown]", whole: "tuple[Breakdown, Breakdown]", request: int | None,
          pairs: Pairs) -> None:
    """The totals of both runs, what changed phase by phase, and the phases that changed most."""
    from ksim.cli.phase_tables import PARTS, largest, phase_table, plain, signed, title_of
    from ksim.cli.screen import console, table

    screen, names = console(), runs[0].names
    screen.print(f"Where the time went, [bold]{runs[0].directory}[/] to [bold]{runs[1].directory}[/]:"
                 f" {_heading(runs[0], request)}")
    titles = {key: PARTS.get(key) or title_of(key) for key in pairs}
    totals = table("ms", *(f">{title}" for title in titles.values()))
    for place, run in enumerate(runs):
        totals.add_row(str(run.directory), *(plain(1e3 * float(pair[place].sum())) for pair in pairs.values()))
    screen.print(totals)
    screen.print(phase_table(names, {titles[key]: after - before for key, (before, after) in pairs.items()}, signed))
    for key, (before, after) in pairs.items():
        parts = ", ".join(f"{group} {signed(1e3 * seconds)} ms" for group, seconds in largest(after - before, names)
                          if signed(1e3 * seconds))
        change = signed(1e3 * float((after - before).sum()))
        screen.print(f"* {titles[key]}: {f'{change} ms' if change else 'no change'}{f' ({parts})' if parts else ''}",
                     markup=False)
    left = [len(run.ids) - len(runs[0].ids) for run in whole]
    if request is None and any(left):
        screen.print(f"! {left[0]:,} requests completed only in the first run, {left[1]:,} only in the second; none of"
                     " them counts here", markup=False)


def _draw(folder: Path | None, title: str, note: str, pairs: Pairs, names: list[str]) -> None:
    """A row of waterfalls for each metric, or one for the parts of a request."""
    from ksim.cli.phase_tables import PARTS, draw, grouped, title_of
    from ksim.cli.screen import console
    from ksim.results.attribution.phases import GROUPS

    rows: dict[str, dict[str, Any]] = {}
    for key, pair in pairs.items():
        row = "" if key in PARTS else key.partition("_")[2]
        before, after = (grouped(seconds, names) for seconds in pair)
        rows.setdefault(row, {})[PARTS.get(key) or title_of(key)] = before, after

    def plot(path: Path) -> Path:
        from ksim.report.plots import plot_changes

        return plot_changes(path, title, note, list(rows.values()), list(GROUPS))

    if drawn := draw(folder, "diff.png", plot):
        console().print(drawn, markup=False)
