"""`ksim explain`: where the time of a run's requests went."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ksim.results.arrays import Floats
    from ksim.results.attribution.breakdown import Breakdown

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the seconds of all phases here")]
Figures = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="draw into this folder")]


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="directory that `ksim run -o` has written, or a"
                                        " counter-example that `check_policy` has")],
    request: Annotated[int | None, typer.Option(metavar="ID", help="one request; by default what is behind the mean,"
                                                " the median and the p99 of all")] = None,
    json_file: Json = None, output: Figures = None,
) -> None:
    """Say where requests' time went: queue, prefill, others' prefill, decode, host and more, kernel by kernel."""
    from ksim.cli.phase_tables import PARTS, by_phase, largest, phase_table, plain, title_of, write_json
    from ksim.cli.screen import console
    from ksim.foundation.errors import ConfigError
    from ksim.results.attribution.breakdown import Breakdown

    if run.is_file():
        _fault(run, request, json_file, output)
        return
    found = Breakdown.read(run)
    if request is None and not len(found.ids):
        raise ConfigError(str(run), "no request of the run completed, so there is nothing to explain")
    columns = found.statistics() if request is None else found.of(request)
    titles = {key: PARTS.get(key) or title_of(key) for key in columns}
    screen, names = console(), found.names
    heading = _heading(found, request)
    screen.print(f"\n[bold]{run}[/]: {heading}")
    screen.print(phase_table(names, {titles[key]: column for key, column in columns.items()}, plain))
    for key, column in columns.items():
        parts = ", ".join(f"{group} {seconds / column.sum():.0%}" for group, seconds in largest(column, names))
        if parts and (request is not None or key.startswith("p99")):
            screen.print(f"* {titles[key]}: {parts}", markup=False)
    write_json(json_file, {"run": str(run), "request": request,
                           "times": {key: by_phase(names, column) for key, column in columns.items()}})
    if drawn := _draw(output, f"Where the time went: {run.name}", heading, columns, names):
        screen.print(drawn, markup=False)


def _fault(file: Path, request: int | None, json_file: Path | None, output: Path | None) -> None:
    from ksim.cli.explain_fault import explain_fault
    from ksim.cli.phase_tables import write_json
    from ksim.foundation.errors import ConfigError

    if request is not None or output is not None:
        raise ConfigError("--request" if request is not None else "-o", f"is for the directory of a run, and {file} is"
                                                                        " a file")
    write_json(json_file, explain_fault(file))


def _heading(found: "Breakdown", request: int | None) -> str:
    if request is None:
        return f"the completed requests, {len(found.ids):,} of them"
    row = found.place(request)
    return f"request {request}, {int(found.output[row]):,} output tokens"


def _draw(folder: Path | None, title: str, note: str, columns: "dict[str, Floats]", names: list[str]) -> str:
    """Statistics have a panel for each metric; the parts of one request, for each part."""
    from ksim.cli.phase_tables import PARTS, draw, grouped, title_of
    from ksim.results.attribution.phases import GROUPS

    panels: dict[str, dict[str, Any]] = {}
    for key, column in columns.items():
        panel = PARTS.get(key) or key.partition("_")[2].upper()
        bar = "" if key in PARTS else title_of(key).partition(" ")[0]
        panels.setdefault(panel, {})[bar] = grouped(column, names)

    def plot(path: Path) -> Path:
        from ksim.report.plots import plot_breakdown

        return plot_breakdown(path, title, note, panels, list(GROUPS))

    return draw(folder, "explain.png", plot)
