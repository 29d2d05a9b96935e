"""`ksim explain`: where the time of a run's requests went, or which invariant a counter-example breaks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.output import JsonInFolder, Wide, console, write_json
from ksim.foundation.errors import ConfigError, KsimError
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.results.arrays import Floats
    from ksim.results.attribution.breakdown import Breakdown
    from ksim.testing.history import Moment
    from ksim.testing.replayed import Replayed, Written

Figures = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="draw into this folder")]

#: How many steps of a counter-example are shown, up to the one that breaks the invariant.
_SHOWN = 12


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="directory that `ksim run -o` has written, or a"
                                        " counter-example of `check_policy`")],
    request: Annotated[int | None, typer.Option(metavar="ID", help="one request; by default what is behind the mean,"
                                                " the median and the p99 of all")] = None,
    json_file: JsonInFolder = None, wide: Wide = False, output: Figures = None,
) -> None:
    """Say where requests' time went: queue, prefill, others' prefill, decode, host and more, kernel by kernel."""
    from ksim.report.run_directory import readable

    if run.is_file():
        _explain_counter_example(run, request, json_file, output)
        return
    with readable(run):
        _explain_run(run, request, json_file, output)


def _explain_run(run: Path, request: int | None, json_file: Path | None, output: Path | None) -> None:
    from ksim.cli.phase_tables import PARTS, by_phase, largest, phase_table, plain, title_of
    from ksim.results.attribution.breakdown import Breakdown

    breakdown = Breakdown.read(run)
    if request is None and not len(breakdown.ids):
        raise ConfigError(str(run), "no request of the run completed, so there is nothing to explain")
    columns = breakdown.statistics() if request is None else breakdown.of(request)
    titles = {key: PARTS.get(key) or title_of(key) for key in columns}
    screen, names = console(), breakdown.names
    heading = _heading(breakdown, request)
    screen.print(f"\n[bold]{run}[/]: {heading}")
    screen.print(phase_table(names, {titles[key]: column for key, column in columns.items()}, plain))
    for key, column in columns.items():
        parts = ", ".join(f"{group} {seconds / column.sum():.0%}" for group, seconds in largest(column, names))
        if parts and (request is not None or key.startswith("p99")):
            screen.print(f"* {titles[key]}: {parts}", markup=False)
    write_json(json_file, {"run": str(run), "request": request,
                           "times": {key: by_phase(names, column) for key, column in columns.items()}},
               make_folder=True)
    if drawn := _draw(output, f"Where the time went: {run.name}", heading, columns, names):
        screen.print(drawn, markup=False)


def _explain_counter_example(file: Path, request: int | None, json_file: Path | None, output: Path | None) -> None:
    if request is not None or output is not None:
        raise ConfigError("--request" if request is not None else "-o", f"is for the directory of a run, and {file} is"
                                                                        " a file")
    write_json(json_file, _counter_example(file), make_folder=True)


def _heading(breakdown: "Breakdown", request: int | None) -> str:
    if request is None:
        return f"the completed requests, {len(breakdown.ids):,} of them"
    row = breakdown.place(request)
    engines = breakdown.engines(request)
    return f"request {request}, {int(breakdown.output[row]):,} output tokens{f', {engines}' if engines else ''}"


def _draw(folder: Path | None, title: str, note: str, columns: "dict[str, Floats]", names: list[str]) -> str:
    """Draw a panel for each metric, or, for one request, for each part of its time."""
    from ksim.cli.phase_tables import PARTS, draw, grouped, title_of
    from ksim.results.attribution import groups

    panels: dict[str, dict[str, Any]] = {}
    for key, column in columns.items():
        panel = PARTS.get(key) or key.partition("_")[2].upper()
        bar = "" if key in PARTS else title_of(key).partition(" ")[0]
        panels.setdefault(panel, {})[bar] = grouped(column, names)

    def plot(path: Path) -> Path:
        from ksim.report.plots import plot_breakdown

        return plot_breakdown(path, title, note, panels, groups(names))

    return draw(folder, "explain.png", plot)


def _counter_example(path: Path) -> dict[str, Any]:
    """Print what the counter-example at *path* shows, and return it for a JSON file."""
    try:
        from ksim.testing.replayed import Written, replay
    except ImportError as error:
        raise KsimError(str(error)) from None
    screen, written = console(), Written.read(path)
    screen.print(f"\n{path}: a counter-example of `check_policy`", markup=False)
    screen.print(f"{written.subject} breaks {written.invariant} in step {written.step}: {written.problem}",
                 markup=False)
    if written.statement:
        screen.print(f"{written.invariant}: {written.statement}", markup=False)
    try:
        again = replay(path, written)
    except ConfigError as error:
        screen.print(f"! it cannot be played again: {error}", markup=False)
        return _fault_content(written, None)
    screen.print(f"{len(again.case.arrivals)} requests; {_limits(again)}", markup=False)
    screen.print(_steps(again, again.breach[0] if again.breach else written.step))
    for line in _verdict(written, again):
        screen.print(line, markup=False)
    screen.print(f"to see it on the clock: ksim run {path} -o DIR, then ksim explain DIR", markup=False)
    return _fault_content(written, again)


def _verdict(written: "Written", again: "Replayed") -> list[str]:
    untold = f" (the file could not hold its {written.untold})" if written.untold else ""
    if again.breach is None:
        return [f"* played again, {written.invariant} holds{untold}: the policy has changed since, or a scheduler or"
                " cache of its own is at fault, which a scenario cannot name"]
    step, problem = again.breach
    return [f"* played again, it breaks in step {step}: {problem}{untold}"]


def _steps(again: "Replayed", last: int) -> Table:
    """What each step up to the *last* computed, and which requests waited or were preempted."""
    made = Table.of(">step", "computed (request: tokens)", "preempted", "running", "waiting")
    shown = [moment for moment in again.moments if moment.step <= last][-_SHOWN:]
    for moment in shown:
        made.add_row(str(moment.step), _computed(moment), _listed(moment.preempted), _listed(moment.running),
                     _listed(moment.waiting), style="bold" if moment.step == last else "")
    return made


def _computed(moment: "Moment") -> str:
    return ", ".join(f"{share.request}: {share.tokens}{' (admitted)' if share.admitted else ''}"
                     for share in moment.shares) or "-"


def _listed(requests: tuple[int, ...]) -> str:
    """The numbers of up to ten requests, and how many more there are."""
    more = f" and {len(requests) - 10} more" if len(requests) > 10 else ""
    return f"{', '.join(map(str, requests[:10]))}{more}"


def _limits(again: "Replayed") -> str:
    settings = again.case.settings
    return (f"max_num_batched_tokens {settings['max_num_batched_tokens']}, max_num_seqs {settings['max_num_seqs']},"
            f" {settings['blocks']} KV blocks of {settings['block_tokens']} tokens")


def _fault_content(written: "Written", again: "Replayed | None") -> dict[str, Any]:
    now = again and again.breach
    return {"invariant": written.invariant, "statement": written.statement, "subject": written.subject,
            "step": written.step, "problem": written.problem, "played_again": again is not None,
            "breaks_again": now and {"step": now[0], "problem": now[1]}}
