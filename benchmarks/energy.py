"""`python -m benchmarks.energy RUNS TABLE`: write the tables of docs/evidence/energy-accuracy.md."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy import marked
from benchmarks.pages import put
from benchmarks.research.energy import ERRORS as KERNEL_ERRORS
from benchmarks.research.energy import (
    BoardReport,
    EnergyQuestion,
    PowerCell,
    PowerErrors,
    SustainedReport,
    mape,
    validate,
)
from benchmarks.research.serving import comparison

PAGE = Path("docs/evidence/energy-accuracy.md")
#: Errors above these, in per cent, are bold.
POWER, TIME, RUN, BOARD = 6.0, 5.0, 8.0, 10.0
ERRORS = (("power", POWER), ("time", TIME), ("energy", POWER))


def main(arguments: Sequence[str]) -> None:
    """Validate our own runs and kernels, and the public table.  This takes half a minute."""
    runs, table = (validate(EnergyQuestion(Path(argument))) for argument in arguments)
    if not (runs.kernels and runs.runs and table.table):
        raise SystemExit("RUNS needs sustained kernels and serving runs, TABLE a table with the power of boards")
    put(PAGE, "kernels", _kernels(runs.kernels))
    put(PAGE, "runs", _runs(runs.runs))
    put(PAGE, "boards", _boards(table.table))


def _kernels(report: SustainedReport) -> Iterator[str]:
    """Means over all kernels, by what the fit leaves out; then each kernel, predicted without its shape."""
    yield "| mean absolute errors | kernels | power | time | energy, with predicted time |"
    yield "|---|--:|--:|--:|--:|"
    for name, found in (("without the shape", report.shapes), ("without the family", report.families),
                        ("without the shape, graph times taken as cool", report.recovered_shapes),
                        ("without the family, graph times taken as cool", report.recovered_families)):
        cells = [_bold(mape(found, error), goal) for error, goal in ERRORS]
        yield f"| {name} | {len(found)} | {' | '.join(cells)} |"
    yield ""
    yield "| kernel | format | W | us | power | time | energy |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for each in report.shapes:
        cells = [marked(getattr(each, KERNEL_ERRORS[error]), goal) for error, goal in ERRORS]
        row = each.row
        yield (f"| {row.family} {row.shape} | {row.dtype} | {row.watts:.0f} | {1e6 * row.seconds:.1f} |"
               f" {' | '.join(cells)} |")


def _runs(report: comparison.ServingReport) -> Iterator[str]:
    """By recording, then every run."""
    metered = report.metered
    yield "| recording | runs | median | mean | 90th percentile | median signed |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in ("all", *dict.fromkeys(run.recording for run in metered)):
        errors = np.array([run.errors.joules for run in metered if name in ("all", run.recording)])
        size = np.abs(errors)
        yield (f"| {name} | {len(errors)} | {_bold(float(np.median(size)), RUN)} | {size.mean():.1f} |"
               f" {np.quantile(size, 0.9):.1f} | {np.median(errors):+.1f} |")
    yield ""
    yield "| recording | run | joules | error |"
    yield "|---|---|--:|--:|"
    for run in metered:
        yield f"| {run.recording} | {run.run} | {run.measured.joules:.0f} | {marked(run.errors.joules, RUN)} |"


def _boards(report: BoardReport) -> Iterator[str]:
    yield ("| GPU | kernels | rows | model: mean, median (signed) | within 10 % | meter: mean, median (signed) |"
           " within 10 % |")
    yield "|---|---|--:|--:|--:|--:|--:|"
    for cell in (report.whole, *report.gpus, *report.cells):
        yield f"| {cell.gpu} | {_kind(cell)} | {cell.rows:,} | {_errors(cell.drawn)} | {_errors(cell.observed)} |"


def _kind(cell: PowerCell) -> str:
    return f"{cell.op.replace('_', ' ')} {cell.dtype}".strip() or "all"


def _errors(errors: PowerErrors) -> str:
    text = f"{errors.mape:.1f}, {errors.median:.1f} ({errors.bias:+.1f})"
    return f"{f'**{text}**' if errors.mape > BOARD else text} | {errors.within:.0f} %"


def _bold(error: float, goal: float) -> str:
    return f"**{error:.1f}**" if error > goal else f"{error:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
