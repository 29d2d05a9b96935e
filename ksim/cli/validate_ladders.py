"""`ksim validate ladders`: load ladders of fleets, predicted beside measured."""

import os
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.output import JsonFile, Wide, console, say, status, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.ladders import Cell, Compared, LadderReport

#: The columns of the table on the screen; the JSON file has all.
_SHOWN = ("req_s", "out_tok_s", "total_tok_s", "ttft_mean_s", "ttft_p90_s", "e2e_mean_s", "tpot_mean_ms")


def ladders(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured ladders, as ladders.csv")],
    ladder: Annotated[str, typer.Option(help="only ladders with this in their names")] = "",
    arm: Annotated[str, typer.Option(help="only arms with this in their names")] = "",
    recipes: Annotated[Path | None, typer.Option(metavar="FILE", help="how ladders were set up that ksim does not"
                                                 " know: a file like ksim/data/recipes/ladders.toml")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of arrivals and of the order of prompts")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="number of processes; by default one per core")] = 0,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Simulate load ladders of fleets, and compare rates and latencies, stage by stage.

    A second table has the rates at which queues begin, and what one arm of a ladder gains over another.
    """
    from ksim.validation.ladders import Question, validate

    with status("reading") as line:
        report = validate(Question(path, ladder, arm, recipes, seed, jobs or os.cpu_count() or 1),
                          lambda done, of: line.update(f"simulated {done:,} of {of:,} arms"))
    console().print(_cells(report))
    if report.compared:
        console().print(_compared(report))
    for reason, count in report.reasons.items():
        say(f"{count} rows not simulated: {reason}")
    write_json(json_file, {"rows": [_row(cell) for cell in report.cells], "compared": [
        _what(line) for line in report.compared], "not_simulated": dict(report.reasons)})
    say(f"simulated {len(report.cells)} of {len(report.cells) + sum(report.reasons.values())} rows")


def _cells(report: "LadderReport") -> Table:
    rows = Table.of("ladder", "arm", ">rate", *(f">{name}" for name in _SHOWN), title="predicted / measured",
                    hide=_SHOWN[:1:-1])
    for cell in report.cells:
        row = cell.row
        stage = row.stage if isnan(row.rate) else f"{row.rate:g}"
        rows.add_row(f"{row.ladder} {row.run}", row.arm, stage,
                     *(_beside(cell, name) for name in _SHOWN))
    return rows


def _compared(report: "LadderReport") -> Table:
    rows = Table.of("ladder", "what", ">measured", ">predicted", ">error %", title="queues and gains")
    for line in report.compared:
        rows.add_row(f"{line.ladder} {line.run}", line.what, f"{line.measured:.4g}",
                     f"{line.predicted:.4g}", f"{line.error:+.1f}")
    return rows


def _what(line: "Compared") -> Mapping[str, Any]:
    return {"ladder": line.ladder, "run": line.run, "what": line.what, "measured": line.measured,
            "predicted": line.predicted, "error": line.error}


def _beside(cell: "Cell", name: str) -> str:
    measured = cell.row.measured.get(name)
    return f"{cell.predicted[name]:.4g}" + ("" if measured is None else f" / {measured:.4g}")


def _row(cell: "Cell") -> Mapping[str, Any]:
    row = cell.row
    return {"ladder": row.ladder, "run": row.run, "arm": row.arm, "stage": row.stage,
            "rate": None if isnan(row.rate) else row.rate, "measured": dict(row.measured),
            "predicted": dict(cell.predicted), "errors": cell.errors}
