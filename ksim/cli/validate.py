"""`ksim validate`: how close ksim is to what was recorded and measured.

`ksim validate energy`: errors of power and energy.

`ksim validate kernels`: errors of the oracles on measured kernels.

`ksim validate transfers`: errors of KV transfers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import JsonFile, Wide, console, say, status, words_of, write_json
from ksim.cli.help import App
from ksim.cli.validate_serving import serving, steps
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.calibration.accuracy import KernelReport
    from ksim.validation.energy import BoardReport, EnergyReport, SustainedReport
    from ksim.validation.measured_transfers import TransferReport
    from ksim.validation.schedules import Difference, ScheduleReport
    from ksim.validation.serving.comparison import ServingReport


def energy(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder or file: sustained kernels"
                                         " (kernels_energy.parquet), serving runs (engine_NAME.json), or a public table"
                                         " with the power of boards (power_sample.parquet)")],
    gpu: Annotated[str, typer.Option(help="GPU of sustained kernels and serving runs, which do not name it")] = "h200",
    limit: Annotated[int, typer.Option(min=0, help="take only so many rows of a public table, drawn by the hashes of"
                                       " their shapes; 0 takes all")] = 0,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare power and energy with the measurements at PATH.

    Sustained kernels are predicted by fits without their shape, and without their family.  Serving runs are simulated.
    Of a public table, the rows of one shape in five are predicted; nothing was fitted to these.
    """
    from ksim.validation.energy import Question, as_table, validate

    with status("reading") as line:
        report = validate(Question(path, gpu, limit), line.update)
    write_json(json_file, as_table(report))
    _print(report)


def _print(report: "EnergyReport") -> None:
    screen, lines = console(), []
    if report.kernels:
        screen.print(_kernels(report.kernels))
        lines += _kernel_lines(report.kernels)
    if report.runs:
        screen.print(_runs(report.runs))
        lines.append(f"joules of {len(report.runs.metered)} serving runs: median error"
                     f" {report.runs.median_ape('joules'):.2f} %")
    if report.table:
        screen.print(_boards(report.table))
        lines.append(_board_line(report.table))
    say("\n".join(lines))


def _kernels(report: "SustainedReport") -> Table:
    rows = Table.of("family", "format", "shape", ">W", ">us", *(f">{name}" for name in (
        "power", "without family", "time", "without family", "energy", "without family")),
        hide=("without family", "format", "us", "W"),
        title="sustained kernels: errors in %, fitted without the shape, and without the whole family")
    for shape, family in zip(report.shapes, report.families, strict=True):
        errors = [getattr(kernel, name) for name in ("power_error", "time_error", "energy_error")
                  for kernel in (shape, family)]
        rows.add_row(shape.row.family, shape.row.dtype, shape.row.shape, f"{shape.row.watts:.0f}",
                     f"{1e6 * shape.row.seconds:.1f}", *(f"{error:+.1f}" for error in errors))
    return rows


def _kernel_lines(report: "SustainedReport") -> list[str]:
    """The errors of kernels in words, also for times of captured graphs taken for those of a cool GPU."""
    from ksim.validation.energy import mape

    def both(error: str, recovered: bool = False) -> str:
        ways = ((report.recovered_shapes, report.recovered_families) if recovered else
                (report.shapes, report.families))
        return " and ".join(f"{mape(kernels, error):.2f}" for kernels in ways)

    return [f"mean errors of {len(report.shapes)} sustained kernels, without their shape and without their family:"
            f" power {both('power')} %, time {both('time')} %, energy with that time {both('energy')} %",
            "note: graphs were timed at the clock that the kernel before them had left; taken for cool times, they make"
            f" time {both('time', True)} %, energy {both('energy', True)} %"]


def _runs(report: "ServingReport") -> Table:
    rows = Table.of("recording", "run", ">joules", ">predicted", ">error %", title="serving runs")
    for run in report.metered:
        rows.add_row(run.recording, run.run, f"{run.measured.joules:.0f}", f"{run.predicted.joules:.0f}",
                     f"{run.errors.joules:+.1f}")
    return rows


def _boards(report: "BoardReport") -> Table:
    rows = Table.of("gpu", "op", "format", ">rows", *(">MAPE %", ">median", ">bias", ">in 10 %") * 2,
                    hide=("in 10 %", "bias", "median", "op"),
                    title="power of boards, rows held back: errors of the model, and of a meter fitted to other rows")
    for cell in (*report.cells, *report.gpus, report.whole):
        cells = [f"{value:{sign}.1f}" for errors in (cell.drawn, cell.observed) for value, sign in (
            (errors.mape, ""), (errors.median, ""), (errors.bias, "+"), (errors.within, ""))]
        rows.add_row(cell.gpu, cell.op, cell.dtype, f"{cell.rows:,}", *cells)
    return rows


def _board_line(report: "BoardReport") -> str:
    whole = report.whole
    return (f"power of {whole.rows:,} rows of boards held back: {whole.drawn.mape:.2f} % on the mean,"
            f" {whole.drawn.median:.2f} % in the median; as a meter would read it, {whole.observed.mape:.2f} %,"
            f" {whole.observed.median:.2f} %")


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
    from ksim.calibration.accuracy import Question, check_question, validate
    from ksim.foundation.config import Choice

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
    _write_kernels(json_file, report)
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


def _write_kernels(path: Path | None, report: "KernelReport") -> None:
    from attrs import asdict

    outcome = {"families": report.families, "mean": report.mean, "coverage": report.coverage,
               "cells": [asdict(cell) for cell in report.cells],
               "left_out": [{"of": name, **asdict(left)} for name, left in report.left]}
    write_json(path, outcome)


def transfers(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured transfers, as transfers.csv")],
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare KV transfers between two nodes with measured ones.

    The constants of a connector are fitted to every second row of a series.  The other rows are held back.
    """
    from ksim.validation.measured_transfers import median_ape, validate

    report = validate(path)
    screen = console()
    screen.print(_transfers(report))
    if report.refused:
        screen.print(_refused(report))
    _write_transfers(json_file, report)
    held_back = (f"{median_ape(report.held_back):.2f} % in the median of {len(report.held_back)} rows held back"
                 if report.held_back else "no row is held back")
    say(f"seconds of transfers: {held_back}, {median_ape(report.transfers):.2f} % of all {len(report.transfers)}")


def _transfers(report: "TransferReport") -> Table:
    rows = Table.of("series", "connector", ">tokens", ">MB", ">ms", ">predicted", ">error %", "row is",
                    hide=("row is", "MB", "connector"),
                    title="transfers between two nodes")
    for transfer in report.transfers:
        row = transfer.row
        rows.add_row(row.series, row.plugin or "", f"{row.tokens:,}", f"{row.bytes / 1e6:,.0f}",
                     f"{1e3 * row.seconds:.2f}", f"{1e3 * transfer.predicted:.2f}", f"{transfer.error:+.1f}",
                     "fitted" if transfer.fitted else "held back")
    return rows


def _refused(report: "TransferReport") -> Table:
    rows = Table.of(">rows", "refused, because", title="rows refused")
    for reason, count in report.refused.items():
        rows.add_row(str(count), reason)
    return rows


def _write_transfers(path: Path | None, report: "TransferReport") -> None:
    from ksim.validation.measured_transfers import median_ape

    write_json(path, {
        "held_back_median_ape": median_ape(report.held_back), "median_ape": median_ape(report.transfers),
        "transfers": [{"series": transfer.row.series, "connector": transfer.row.plugin, "tokens": transfer.row.tokens,
                       "bytes": transfer.row.bytes, "seconds": transfer.row.seconds, "predicted": transfer.predicted,
                       "error": transfer.error, "fitted": transfer.fitted} for transfer in report.transfers],
        "refused": report.refused})


app = App(help="Compare ksim with recordings and measurements.", no_args_is_help=True)

#: With more cases than this, the table has a row for each kind of case.
_LISTED = 20


app.command("energy")(energy)
app.command("kernels")(kernels)
app.command("serving")(serving)
app.command("steps")(steps)
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
    from ksim.validation import schedules

    reports = schedules.validate(path, case)
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
