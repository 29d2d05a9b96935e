"""`ksim validate energy`: how far power and energy are off."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.validation.energy import Verdict, of_boards, of_kernels
    from ksim.validation.serving import judging


def energy(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder or file: sustained kernels"
                                         " (kernels_energy.parquet), serving runs (engine_NAME.json), or a public table"
                                         " with the power of boards (power_sample.parquet)")],
    gpu: Annotated[str, typer.Option(help="GPU of sustained kernels and serving runs, which do not name it")] = "h200",
    limit: Annotated[int, typer.Option(min=0, help="only so many rows of a public table, drawn by the hashes of their"
                                       " shapes")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the outcome here")] = None,
) -> None:
    """Compare power and energy with what was measured: what is at PATH says of what.

    Sustained kernels are foretold by fits without their shape, and without their family.  Serving runs are replayed.
    Of public tables the rows of one shape in five are judged, which nothing was fitted to.
    """
    from ksim.cli.json_file import write_outcome
    from ksim.cli.screen import console
    from ksim.validation.energy import Question, as_table, validate

    with console().status("reading") as status:
        verdict = validate(Question(path, gpu, limit), status.update)
    write_outcome(json_file, as_table(verdict))
    _print(verdict)


def _print(verdict: "Verdict") -> None:
    from ksim.cli.screen import console

    screen, lines = console(), []
    if verdict.kernels:
        screen.print(_kernels(verdict.kernels))
        lines += _of_kernels(verdict.kernels)
    if verdict.runs:
        screen.print(_runs(verdict.runs))
        lines.append(f"joules of {len(verdict.runs.metered)} serving runs: median error"
                     f" {verdict.runs.median_ape('joules'):.2f} %")
    if verdict.table:
        screen.print(_boards(verdict.table))
        lines.append(_of_boards(verdict.table))
    print("\n".join(lines))


def _kernels(verdict: "of_kernels.Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("family", "format", "shape", ">W", ">us", *(f">{name}" for name in (
        "power", "without family", "time", "without family", "energy", "without family")),
        title="sustained kernels: errors in %, fitted without the shape, and without the whole family")
    for shape, family in zip(verdict.shapes, verdict.families, strict=True):
        errors = [getattr(found, name) for name in ("power_error", "time_error", "energy_error")
                  for found in (shape, family)]
        rows.add_row(shape.row.family, shape.row.dtype, shape.row.shape, f"{shape.row.watts:.0f}",
                     f"{1e6 * shape.row.seconds:.1f}", *(f"{error:+.1f}" for error in errors))
    return rows


def _of_kernels(verdict: "of_kernels.Verdict") -> list[str]:
    """Errors of kernels in words, and what they were if graphs had been timed on a cool GPU."""
    from ksim.validation.energy.of_kernels import mape

    def both(error: str, recovered: bool = False) -> str:
        found = ((verdict.recovered_shapes, verdict.recovered_families) if recovered else
                 (verdict.shapes, verdict.families))
        return " and ".join(f"{mape(each, error):.2f}" for each in found)

    return [f"mean errors of {len(verdict.shapes)} sustained kernels, without their shape and without their family:"
            f" power {both('power')} %, time {both('time')} %, energy with that time {both('energy')} %",
            "note: graphs were timed at the clock that the kernel before had left; taken for cool times they make"
            f" time {both('time', True)} %, energy {both('energy', True)} %"]


def _runs(verdict: "judging.Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("recording", "run", ">joules", ">predicted", ">error %", title="serving runs")
    for run in verdict.metered:
        rows.add_row(run.recording, run.run, f"{run.measured.joules:.0f}", f"{run.predicted.joules:.0f}",
                     f"{run.errors.joules:+.1f}")
    return rows


def _boards(verdict: "of_boards.Verdict") -> "Table":
    from ksim.cli.screen import table

    rows = table("gpu", "op", "format", ">rows", *(">MAPE %", ">median", ">bias", ">in 10 %") * 2,
                 title="power of boards, rows held back: as the model has it, and as a meter would by the other rows")
    for cell in (*verdict.cells, *verdict.gpus, verdict.whole):
        cells = [f"{value:{sign}.1f}" for errors in (cell.drawn, cell.observed) for value, sign in (
            (errors.mape, ""), (errors.median, ""), (errors.bias, "+"), (errors.within, ""))]
        rows.add_row(cell.gpu, cell.op, cell.dtype, f"{cell.rows:,}", *cells)
    return rows


def _of_boards(verdict: "of_boards.Verdict") -> str:
    whole = verdict.whole
    return (f"power of {whole.rows:,} rows of boards held back: {whole.drawn.mape:.2f} % on the mean,"
            f" {whole.drawn.median:.2f} % in the median; as a meter would read it {whole.observed.mape:.2f} %,"
            f" {whole.observed.median:.2f} %")
