"""`ksim validate`: does ksim do as the real thing did?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.screen import console, table
from ksim.cli.validate_energy import energy
from ksim.cli.validate_kernels import kernels
from ksim.cli.validate_serving import serving, steps
from ksim.cli.validate_silicon import silicon

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.validation.schedules import Difference, Verdict

app = typer.Typer(help="Compare ksim with what the real thing did.", no_args_is_help=True)

#: With more cases than this, the table has a row for each kind and not for each case.
_LISTED = 20
#: Characters of a value that the table shows.
_SHOWN = 44


app.command("energy")(energy)
app.command("kernels")(kernels)
app.command("serving")(serving)
app.command("steps")(steps)
app.command("silicon")(silicon)


@app.callback()
def validate() -> None:
    """Compare ksim with what the real thing did."""


@app.command()
def schedule(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of case files (*.json.gz, *.json), or one file")],
    case: Annotated[str, typer.Option(metavar="NAME", help="replay only this case")] = "",
    first_difference: Annotated[bool, typer.Option("--first-difference", help="print the whole step in which a case"
                                                   " first differs, as recorded and as replayed")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the outcome here")] = None,
) -> None:
    """Replay recorded schedules of vLLM and compare every step; exit code 0 only if all are exact."""
    from ksim.validation import cases, schedules

    verdicts = [schedules.judge(cases.read(file)) for file in cases.find(path, case)]
    failures = [(verdict.case, verdict.difference) for verdict in verdicts if verdict.difference is not None]
    screen = console()
    screen.print(_by_case(verdicts) if len(verdicts) <= _LISTED else _by_kind(verdicts))
    if failures:
        screen.print(_differences(failures))
    if first_difference:
        for name, difference in failures:
            _print_steps(name, difference)
    if json_file is not None:
        _write(json_file, verdicts)
    print(f"exact cases: {len(verdicts) - len(failures)} of {len(verdicts)}")
    if failures:
        raise typer.Exit(1)


def _by_case(verdicts: Sequence["Verdict"]) -> "Table":
    rows = table("case", ">steps", "exact")
    for verdict in verdicts:
        rows.add_row(_plain(verdict.case), str(verdict.steps), "yes" if verdict.exact else "no")
    return rows


def _by_kind(verdicts: Sequence["Verdict"]) -> "Table":
    kinds: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        kinds.setdefault(verdict.kind, []).append(verdict)
    rows = table("kind", ">cases", ">steps", ">exact")
    for kind, members in kinds.items():
        rows.add_row(_plain(kind), str(len(members)), str(sum(verdict.steps for verdict in members)),
                     str(sum(verdict.exact for verdict in members)))
    return rows


def _differences(failures: Sequence[tuple[str, "Difference"]]) -> "Table":
    rows = table("case", ">step", "key", "expected", "got", title="first differences")
    for name, difference in failures:
        rows.add_row(_plain(name), "" if difference.step is None else str(difference.step), _plain(difference.key),
                     *(_plain(_brief(value)) for value in (difference.expected, difference.got)))
    return rows


def _brief(value: Any) -> str:
    text = "" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN - 3]}..."


def _plain(text: str) -> str:
    """*text* as it is, whatever brackets it has."""
    from rich.markup import escape

    return escape(text)


def _print_steps(name: str, difference: "Difference") -> None:
    print(f"{name}{'' if difference.step is None else f', step {difference.step}'}: {difference.key}")
    for word, row in zip(("expected", "got"), difference.rows, strict=True):
        print(f"  {word:8} {json.dumps(row, sort_keys=True)}")


def _write(path: Path, verdicts: Sequence["Verdict"]) -> None:
    from attrs import asdict, fields

    from ksim.cli.json_file import write_outcome
    from ksim.validation.schedules import Difference

    failures = {verdict.case: asdict(verdict.difference, filter=lambda field, _: field != fields(Difference).rows)
                for verdict in verdicts if verdict.difference is not None}
    outcome = {"cases": len(verdicts), "exact": len(verdicts) - len(failures), "failures": failures,
               "steps": sum(verdict.steps for verdict in verdicts)}
    write_outcome(path, outcome)
