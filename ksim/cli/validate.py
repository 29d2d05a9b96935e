"""`ksim validate`: how close ksim is to what was recorded and measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.help import App
from ksim.cli.output import JsonFile, Wide, console, say, write_json
from ksim.cli.validate_energy import energy
from ksim.cli.validate_kernels import kernels
from ksim.cli.validate_ladders import ladders
from ksim.cli.validate_serving import serving, steps
from ksim.cli.validate_silicon import silicon
from ksim.cli.validate_transfers import transfers
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.schedules import Difference, ScheduleReport

app = App(help="Compare ksim with recordings and measurements.", no_args_is_help=True)

#: With more cases than this, the table has a row for each kind of case.
_LISTED = 20


app.command("energy")(energy)
app.command("kernels")(kernels)
app.command("ladders")(ladders)
app.command("serving")(serving)
app.command("steps")(steps)
app.command("silicon")(silicon)
app.command("transfers")(transfers)


@app.callback()
def validate() -> None:
    """Compare ksim with recordings and measurements."""


@app.command()
def schedule(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of case files (*.json.gz, *.json), or one file")],
    case: Annotated[str, typer.Option(metavar="NAME", help="replay only this case")] = "",
    first_difference: Annotated[bool, typer.Option("--first-difference", help="print the whole step in which a case"
                                                   " first differs, as recorded and as replayed")] = False,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Replay recorded schedules of vLLM and compare every step; exits with 0 only if all are exact."""
    from ksim.validation import cases, schedules

    reports = [schedules.compare(cases.read(file)) for file in cases.find(path, case)]
    failures = [(report.case, report.difference) for report in reports if report.difference is not None]
    screen = console()
    screen.print(_by_case(reports) if len(reports) <= _LISTED else _by_kind(reports))
    if failures:
        screen.print(_differences(failures))
    if first_difference:
        for name, difference in failures:
            _print_steps(name, difference)
    _write(json_file, reports)
    say(f"exact cases: {len(reports) - len(failures)} of {len(reports)}")
    if failures:
        raise typer.Exit(1)


def _by_case(reports: Sequence["ScheduleReport"]) -> Table:
    rows = Table.of("case", ">steps", "exact")
    for report in reports:
        rows.add_row(report.case, str(report.steps), "yes" if report.exact else "no")
    return rows


def _by_kind(reports: Sequence["ScheduleReport"]) -> Table:
    kinds: dict[str, list[ScheduleReport]] = {}
    for report in reports:
        kinds.setdefault(report.kind, []).append(report)
    rows = Table.of("kind", ">cases", ">steps", ">exact")
    for kind, members in kinds.items():
        rows.add_row(kind, str(len(members)), str(sum(report.steps for report in members)),
                     str(sum(report.exact for report in members)))
    return rows


def _differences(failures: Sequence[tuple[str, "Difference"]]) -> Table:
    rows = Table.of("case", ">step", "key", "expected", "got", title="first differences")
    for name, difference in failures:
        rows.add_row(name, "" if difference.step is None else str(difference.step), difference.key,
                     *("" if value is None else json.dumps(value) for value in (difference.expected, difference.got)))
    return rows


def _print_steps(name: str, difference: "Difference") -> None:
    say(f"{name}{'' if difference.step is None else f', step {difference.step}'}: {difference.key}")
    for word, row in zip(("expected", "got"), difference.rows, strict=True):
        say(f"  {word:8} {json.dumps(row, sort_keys=True)}")


def _write(path: Path | None, reports: Sequence["ScheduleReport"]) -> None:
    from attrs import asdict, fields

    from ksim.validation.schedules import Difference

    failures = {report.case: asdict(report.difference, filter=lambda field, _: field != fields(Difference).rows)
                for report in reports if report.difference is not None}
    outcome = {"cases": len(reports), "exact": len(reports) - len(failures), "failures": failures,
               "steps": sum(report.steps for report in reports)}
    write_json(path, outcome)
