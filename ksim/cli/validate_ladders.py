"""`ksim validate ladders`: load ladders of split engines, predicted beside measured."""

import os
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ksim.cli.flags import OutcomeFile
from ksim.cli.output import console, table, write_json

if TYPE_CHECKING:
    from ksim.validation.ladders import Cell, LadderReport

#: The columns of the table on the screen; the JSON file has all.
_SHOWN = ("req_s", "out_tok_s", "ttft_mean_s", "ttft_p95_s", "e2e_mean_s", "tpot_mean_ms")


def ladders(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured ladders, as ladders.csv")],
    ladder: Annotated[str, typer.Option(help="only ladders with this in their names")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="number of processes; by default one per core")] = 0,
    json_file: OutcomeFile = None,
) -> None:
    """Simulate load ladders of prefill and decode engines, and compare rates and latencies, stage by stage."""
    from ksim.validation.ladders import Question, validate

    with console().status("reading") as status:
        report = validate(Question(path, ladder, jobs or os.cpu_count() or 1),
                          lambda done, of: status.update(f"simulated {done:,} of {of:,} arms"))
    console().print(_cells(report))
    for reason, count in report.reasons.items():
        print(f"{count} rows not simulated: {reason}")
    write_json(json_file, {"rows": [_row(cell) for cell in report.cells], "not_simulated": dict(report.reasons)})
    print(f"simulated {len(report.cells)} of {len(report.cells) + sum(report.reasons.values())} rows")


def _cells(report: "LadderReport") -> Table:
    rows = table("ladder", "arm", ">rate", *(f">{name}" for name in _SHOWN), title="predicted / measured")
    for cell in report.cells:
        row = cell.row
        stage = row.stage if isnan(row.rate) else f"{row.rate:g}"
        rows.add_row(escape(f"{row.ladder} {row.run}"), escape(row.arm), stage,
                     *(_beside(cell, name) for name in _SHOWN))
    return rows


def _beside(cell: "Cell", name: str) -> str:
    measured = cell.row.measured.get(name)
    return f"{cell.predicted[name]:.4g}" + ("" if measured is None else f" / {measured:.4g}")


def _row(cell: "Cell") -> Mapping[str, Any]:
    row = cell.row
    return {"ladder": row.ladder, "run": row.run, "arm": row.arm, "stage": row.stage,
            "rate": None if isnan(row.rate) else row.rate, "measured": dict(row.measured),
            "predicted": dict(cell.predicted), "errors": cell.errors}
