"""`ksim validate kernels`: errors of the oracles on measured kernels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import words_of
from ksim.cli.output import JsonFile, Wide, console, say, status, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.kernels import KernelReport


def kernels(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of kernels_<family>.parquet or of public tables,"
                                         " or one file")],
    gpu: Annotated[str, typer.Option(help="predict only this GPU; needed where the files do not name theirs")] = "",
    oracle: Annotated[str, typer.Option(help="latency oracle; package.module:Class for your own")] = "measured",
    profile: Annotated[Path | None, typer.Option(help="profile for the oracle, in place of the one that ships")] = None,
    leave_out: Annotated[str, typer.Option("--leave-out", metavar="GPU|ARCHITECTURE", help="predict it from the other"
                                           " architectures at PATH")] = "",
    train: Annotated[str, typer.Option(metavar="GPU,GPU", help="learn from these GPUs, and predict the"
                                       " others at PATH")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare an oracle with measured kernels, by GPU, family and number format.

    For public tables, `learned` learns from GPUs of other architectures, and `measured` is fitted to the few rows of
    the same GPU that a sweep would have measured.  For a sweep, the profile of its GPU is used; rows that it was fitted
    to are held back in turn.
    """
    from ksim.foundation.config import Choice
    from ksim.validation.kernels import Question, check_question, validate

    choice = Choice(oracle, {"path": str(profile)} if profile else {})
    question = Question(path=path, gpu=gpu, oracle=choice, leave_out=leave_out, train=tuple(words_of(train)))
    check_question(question)
    screen = console()
    with status("reading") as line:
        report = validate(question, lambda name: line.update(f"predicting {name}"))
    for remark in report.remarks:
        say(f"note: {remark}")
    if report.left:
        screen.print(_left(report))
    screen.print(_cells(report))
    screen.print(_worst(report))
    _write(json_file, report)
    for name, family in report.families.items():
        say(f"{name}: {family['mape']:.2f} % of {family['points']:,} points")
    covered = "" if report.coverage is None else f"; {report.coverage:.1f} % lie in their 90 % intervals"
    say(f"mean over families: {report.mean:.2f} %{covered}")


def _cells(report: "KernelReport") -> Table:
    rows = Table.of("gpu", "family", "format", "tag", "rows are", ">points", ">MAPE %", ">median", ">p90", ">p99",
                    ">bias", ">in 90 %", title="errors", hide=("rows are", "in 90 %", "p99", "p90", "bias", "tag"))
    for cell in report.cells:
        rows.add_row(cell.gpu, cell.family, cell.dtype, cell.tag, cell.how, f"{cell.points:,}", f"{cell.mape:.2f}",
                     f"{cell.median:.2f}", f"{cell.p90:.1f}", f"{cell.p99:.1f}", f"{cell.bias:+.2f}",
                     "" if cell.coverage is None else f"{cell.coverage:.1f}")
    return rows


def _worst(report: "KernelReport") -> Table:
    rows = Table.of("gpu", "family", "format", "tag", "worst shapes: measured, and how far off", title="worst shapes")
    for cell in report.cells:
        for i, shape in enumerate(cell.worst):
            rows.add_row(*((cell.gpu, cell.family, cell.dtype, cell.tag) if i == 0 else ("",) * 4), shape)
    return rows


def _left(report: "KernelReport") -> Table:
    rows = Table.of("of", ">rows", "left out, of training and test alike", title="rows left out")
    for name, left in report.left:
        rows.add_row(name, f"{left.rows:,}", left.reason)
    return rows


def _write(path: Path | None, report: "KernelReport") -> None:
    from attrs import asdict

    outcome = {"families": report.families, "mean": report.mean, "coverage": report.coverage,
               "cells": [asdict(cell) for cell in report.cells],
               "left_out": [{"of": name, **asdict(left)} for name, left in report.left]}
    write_json(path, outcome)
