"""`ksim diff`: what changed from one run to another, and which phases explain how latencies differ."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import frozen

from ksim.cli.flags import JsonInFolder, Wide, console, write_json
from ksim.cli.run import Figures
from ksim.foundation.errors import ConfigError, DataError
from ksim.results.numbers import COMPARED, RANK_WAITS, number_of
from ksim.views.tables import Table
from ksim.views.wording import number, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ksim.results.attribution import Breakdown
    from ksim.results.steps import Floats
    from ksim.views.run_directory import Whole

Run = Annotated[Path, typer.Argument(help="directory that `ksim run -o` has written")]
Pairs = dict[str, "tuple[Floats, Floats]"]

#: From this factor on, and below its inverse, a change is shown as a factor.
_MULTIPLE = 2.0
#: Percentage points below which a share of waiting is as before.
_POINTS = 0.05


def diff(
    run_a: Run, run_b: Run,
    request: Annotated[int | None, typer.Option(metavar="ID", help="one request of both runs; by default all that"
                                                " completed in both")] = None,
    json_file: JsonInFolder = None, wide: Wide = False, output: Figures = None,
) -> None:
    """Compare two runs: settings, throughput, latency, cache, energy, cost, and where requests' time went."""
    from ksim.views.insights import reasons
    from ksim.views.run_directory import Whole, readable

    with readable(run_a, run_b):
        runs = Whole.read(run_a), Whole.read(run_b)
        if not any(key in runs[0].summary and key in runs[1].summary for key in COMPARED):
            raise DataError(str(run_b / "summary.json"), f"has no number in common with {run_a / 'summary.json'}, so"
                                                         f" there is nothing to compare; run both again")
        phases, problem = _phases(run_a, run_b, request)
        if request is None:
            for part in (f"\n[bold]{run_a}[/] to [bold]{run_b}[/]", *_whole_runs(*runs)):
                console().print(part)
        written = {"runs": [str(run_a), str(run_b)], "request": request, **_content(*runs)}
        if phases is None:
            console().print(f"! where requests' time went is not compared: {problem}", markup=False)
        else:
            pairs, names = phases.pairs, phases.pair[0].names
            _show(phases.pair, phases.whole, request, pairs)
            why = list(reasons(*runs, names, pairs))
            for sentence in why:
                console().print(f"* {sentence}", markup=False)
            written |= {"reasons": why} if why else {}
            written |= {"completed": [len(run.ids) for run in phases.whole], "in_both": len(phases.pair[0].ids),
                        "times": {key: _times(names, *pair) for key, pair in pairs.items()}}
            _draw(output, f"From {run_a.name} to {run_b.name}", _heading(phases.pair[0], request), pairs, names)
        write_json(json_file, written, make_folder=True)


@frozen(eq=False)
class _Phases:
    """The phases of two runs: of the `whole` runs, and as a `pair` of the requests that completed in both.

    `pairs` are what is compared, by name: the seconds of each phase in either run.
    """

    whole: "tuple[Breakdown, Breakdown]"
    pair: "tuple[Breakdown, Breakdown]"
    pairs: Pairs


def _phases(run_a: Path, run_b: Path, request: int | None) -> tuple[_Phases | None, str]:
    """The phases of both runs, or why they cannot be compared; for one *request* that is an error."""
    from ksim.results.attribution import Breakdown, paired

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


def _times(names: list[str], first: "Floats", second: "Floats") -> dict[str, Any]:
    from ksim.cli.phase_tables import by_phase

    return {"first": by_phase(names, first), "second": by_phase(names, second),
            "change": by_phase(names, second - first)}


def _heading(run: "Breakdown", request: int | None) -> str:
    return f"{len(run.ids):,} requests that completed in both" if request is None else f"request {request}"


def _show(runs: "tuple[Breakdown, Breakdown]", whole: "tuple[Breakdown, Breakdown]", request: int | None,
          pairs: Pairs) -> None:
    """The totals of both runs, what changed phase by phase, and the phases that changed most."""
    from ksim.cli.phase_tables import PARTS, largest, phase_table, plain, signed, timed, title_of

    screen, names = console(), runs[0].names
    screen.print(f"Where the time went, [bold]{runs[0].directory}[/] to [bold]{runs[1].directory}[/]:"
                 f" {_heading(runs[0], request)}")
    titles = {key: PARTS.get(key) or title_of(key) for key in pairs}
    totals = timed("ms", titles.values())
    for index, run in enumerate(runs):
        totals.add_row(str(run.directory), *(plain(1e3 * float(pair[index].sum())) for pair in pairs.values()))
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
        screen.print(f"! {left[0]:,} requests completed only in the first run, {left[1]:,} only in the second; they"
                     " are left out here", markup=False)


def _draw(folder: Path | None, title: str, note: str, pairs: Pairs, names: list[str]) -> None:
    """Draw a row of waterfalls for each metric, or one row for the parts of a request."""
    from ksim.cli.phase_tables import PARTS, draw, title_of
    from ksim.results.attribution import by_group, groups

    rows: dict[str, dict[str, Any]] = {}
    for key, pair in pairs.items():
        row = "" if key in PARTS else key.partition("_")[2]
        before, after = (by_group(seconds, names) for seconds in pair)
        rows.setdefault(row, {})[PARTS.get(key) or title_of(key)] = before, after

    from ksim.views.figures.run import changes_chart

    if drawn := draw(folder, "diff.png", changes_chart(title, note, list(rows.values()), groups(names))):
        console().print(drawn, markup=False)


def _content(one: "Whole", other: "Whole") -> dict[str, Any]:
    """The settings that differ and all numbers, for a JSON file: pairs of the first run's value and the second's."""
    from ksim.views.run_directory import changed

    known = one.settings is not None and other.settings is not None
    settings = changed(one.settings or {}, other.settings or {}) if known else None
    return {"settings": _lists(settings),
            "summary": {key: [one.summary.get(key), other.summary.get(key)]
                        for key in dict.fromkeys((*one.summary, *other.summary))}}


def _lists(settings: Mapping[str, tuple[Any, Any]] | None) -> dict[str, list[Any]] | None:
    return None if settings is None else {key: [*map(_plain, pair)] for key, pair in settings.items()}


def _whole_runs(one: "Whole", other: "Whole") -> "Iterator[RenderableType]":
    """The settings that differ, and the numbers of both runs."""
    from ksim.views.tables import group_tables, pool_tables

    yield from _settings(one, other)
    rows = Table.of("", f">{one.directory}", f">{other.directory}", ">change")
    for _, keys in groupby(COMPARED, lambda key: number_of(key).group):
        for key, first, second in ((key, *_both(key, one, other)) for key in keys):
            if (first, second) != (None, None):
                rows.add_row(key, value_of(key, first), value_of(key, second), change(key, first, second))
        rows.add_section()
    yield rows
    if waits := rank_changes(one.summary, other.summary):
        yield waits
    for run in (one, other):
        if run.pools:
            yield f"[bold]{run.directory}[/] by pool"
            yield from pool_tables(run.summary)
        if groups := [*group_tables(run.summary)]:
            yield f"[bold]{run.directory}[/] by workload, model and tenant"
            yield from groups


def rank_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Which causes of waiting differ between two runs that both have ranks, most first; "" for all others."""
    keys = {"": "rank_wait_share", **RANK_WAITS}
    if any(summary.get(key) is None for summary in (first, second) for key in keys.values()):
        return ""
    whole, *_ = changes = {name: 100 * (second[key] - first[key]) for name, key in keys.items()}.items()
    parts = [f"{name} {points:+.1f} pp" for name, points in sorted(changes, key=lambda item: -abs(item[1]))
             if name and abs(points) >= _POINTS]
    return (f"* GPUs wait for others {whole[1]:+.1f} pp of the time ({', '.join(parts)})" if parts else
            "* GPUs wait for others as long as before, for the same causes")


def _both(key: str, one: "Whole", other: "Whole") -> tuple[float | None, float | None]:
    """The number of both runs; of a run without pools, what it has per GPU is worked out where the other one has it."""
    first, second = (run.summary.get(key) for run in (one, other))
    if (first is None) != (second is None) and key.endswith("_per_gpu"):
        first, second = (run.per_gpu(key.removesuffix("_per_gpu")) for run in (one, other))
    return first, second


def _settings(one: "Whole", other: "Whole") -> "Iterator[RenderableType]":
    from ksim.views.run_directory import changed

    if one.settings is None or other.settings is None:
        gone = one if one.settings is None else other
        yield f"{gone.directory} has no scenario.toml, so settings are not compared"
        return
    changes = changed(one.settings, other.settings)
    if not changes:
        yield "the same settings in both"
        return
    rows = Table.of("changed setting", str(one.directory), str(other.directory))
    for key, pair in changes.items():
        rows.add_row(key, *map(_setting, pair))
    yield rows


def change(key: str, first: float | None, second: float | None) -> str:
    """The change of a number: in percentage points for a share, else as a percentage or a factor."""
    if first is None or second is None or first == second:
        return ""
    if number_of(key).is_share:
        return f"{100 * (second - first):+.1f} pp"
    if first <= 0 or second <= 0:
        return f"{'+' if second > first else '-'}{number(abs(second - first))}"
    ratio = second / first
    return f"{ratio - 1:+.1%}" if 1 / _MULTIPLE < ratio < _MULTIPLE else f"{number(ratio)}x"


def value_of(key: str, value: float | None) -> str:
    """A number of a run as text."""
    return percent(value) if number_of(key).is_share else number(value)


def _setting(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _plain(value: Any) -> Any:
    """A setting for a JSON file; JSON has no infinity and no dates."""
    return json.loads(json.dumps(value, default=str).replace("Infinity", '"inf"').replace("NaN", '"nan"'))
