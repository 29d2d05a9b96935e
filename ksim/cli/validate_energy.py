"""`ksim validate energy`: errors of power and energy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.output import JsonFile, Wide, console, say, status, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.board_power import BoardReport
    from ksim.validation.energy import EnergyReport, SustainedReport
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
