"""`ksim validate kernels`: how far the oracles are from measured kernels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.validation.kernels import Verdict


def kernels(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of kernels_<family>.parquet or of public tables,"
                                         " or one file")],
    gpu: Annotated[str, typer.Option(help="judge only this GPU; needed where the files do not name theirs")] = "",
    oracle: Annotated[str, typer.Option(help="latency oracle; package.module:Class for your own")] = "measured",
    profile: Annotated[Path | None, typer.Option(help="profile that the oracle takes in place of the one that"
                                                 " ships")] = None,
    leave_out: Annotated[str, typer.Option("--leave-out", metavar="GPU|ARCHITECTURE", help="judge it by what the other"
                                           " architectures at PATH teach")] = "",
    train: Annotated[str, typer.Option(metavar="GPU,GPU", help="judge the other GPUs at PATH by what these"
                                       " teach")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the outcome here")] = None,
) -> None:
    """Compare an oracle with measured kernels: per GPU, family and number format.

    Public tables are judged by protocols: `learned` prices each GPU by what GPUs of other architectures taught,
    `measured` by a fit to the few of its own rows that a sweep would have measured.  A sweep is judged by the profile
    of its GPU; rows that the profile was fitted to are held back in turn.
    """
    from ksim.cli.screen import console
    from ksim.foundation.config import Choice
    from ksim.validation.kernels import Question, check_question, validate

    choice = Choice(oracle, {"path": str(profile)} if profile else {})
    question = Question(path=path, gpu=gpu, oracle=choice, leave_out=leave_out,
                        train=tuple(name.strip() for name in train.split(",") if name.strip()))
    check_question(question)
    screen = console()
    with screen.status("reading") as status:
        verdict = validate(question, lambda name: status.update(f"judging {name}"))
    for remark in verdict.remarks:
        print(f"note: {remark}")
    if verdict.left:
        screen.print(_left(verdict))
    screen.print(_cells(verdict))
    screen.print(_worst(verdict))
    if json_file is not None:
        _write(json_file, verdict)
    for name, family in verdict.families.items():
        print(f"{name}: {family['mape']:.2f} % of {family['points']:,} points")
    covered = "" if verdict.coverage is None else f"; {verdict.coverage:.1f} % lie in their 90 % intervals"
    print(f"mean over families: {verdict.mean:.2f} %{covered}")


def _cells(verdict: "Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("gpu", "family", "format", "tag", "rows are", ">points", ">MAPE %", ">median", ">p90", ">p99", ">bias",
                 ">in 90 %", title="errors")
    for cell in verdict.cells:
        rows.add_row(cell.gpu, cell.family, cell.dtype, cell.tag, cell.how, f"{cell.points:,}", f"{cell.mape:.2f}",
                     f"{cell.median:.2f}", f"{cell.p90:.1f}", f"{cell.p99:.1f}", f"{cell.bias:+.2f}",
                     "" if cell.coverage is None else f"{cell.coverage:.1f}")
    return rows


def _worst(verdict: "Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("gpu", "family", "format", "tag", "worst shapes: measured, and how far off", title="worst shapes")
    for cell in verdict.cells:
        for i, shape in enumerate(cell.worst):
            rows.add_row(*((cell.gpu, cell.family, cell.dtype, cell.tag) if i == 0 else ("",) * 4), shape)
    return rows


def _left(verdict: "Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("of", ">rows", "left out, of training and test alike", title="rows left out")
    for name, left in verdict.left:
        rows.add_row(name, f"{left.rows:,}", left.reason)
    return rows


def _write(path: Path, verdict: "Verdict") -> None:
    from attrs import asdict

    from ksim.cli.json_file import write_outcome

    outcome = {"families": verdict.families, "mean": verdict.mean, "coverage": verdict.coverage,
               "cells": [asdict(cell) for cell in verdict.cells],
               "left_out": [{"of": name, **asdict(left)} for name, left in verdict.left]}
    write_outcome(path, outcome)
