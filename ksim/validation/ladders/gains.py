"""What ladders are read for: the rate at which queues begin, and what one arm gains over another."""

import itertools
import math
from collections.abc import Iterable, Iterator

from attrs import frozen

from ksim.validation.ladders.cells import Cell
from ksim.validation.ladders.play import Values

#: A queue has begun where the 90th percentile of TTFT passes so many seconds.
QUEUE = 10.0
#: What arms are compared by, as far as the table has it.
_COMPARED = ("req_s", "out_tok_s", "total_tok_s", "ttft_mean_s", "ttft_p90_s")


@frozen
class Compared:
    """Something that ladders are read for, as `measured` and as `predicted`; either is nan where it does not happen."""

    ladder: str
    run: str
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The signed error in per cent."""
        return 100 * (self.predicted / self.measured - 1)


def compare(cells: Iterable[Cell]) -> list[Compared]:
    """The knee of each arm that has one, and the gains of each arm over the arm before it in the table."""
    runs: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell.row.stage == "rate":
            runs.setdefault((cell.row.ladder, cell.row.run), {}).setdefault(cell.row.arm, []).append(cell)
    return [Compared(ladder, run, *values) for (ladder, run), arms in runs.items()
            for values in (*_knees(arms), *_gains(arms))]


def _knees(arms: dict[str, list[Cell]]) -> Iterator[tuple[str, float, float]]:
    for arm, cells in arms.items():
        if not math.isnan(measured := knee([(cell.row.rate, cell.row.measured) for cell in cells])):
            predicted = knee([(cell.row.rate, cell.predicted) for cell in cells])
            yield f"rate at which the TTFT p90 of {arm} passes {QUEUE:g} s", measured, predicted


def knee(stages: Iterable[tuple[float, Values]]) -> float:
    """The rate at which the 90th percentile of TTFT passes `QUEUE`, where its logarithm goes straight between stages;
    nan if it does not."""
    points = sorted((rate, values["ttft_p90_s"]) for rate, values in stages if "ttft_p90_s" in values)
    for (rate, before), (later, after) in itertools.pairwise(points):
        if before < QUEUE <= after:
            return rate + (later - rate) * math.log(QUEUE / before) / math.log(after / before)
    return math.nan


def _gains(arms: dict[str, list[Cell]]) -> Iterator[tuple[str, float, float]]:
    for (before, old), (arm, new) in itertools.pairwise(arms.items()):
        others = {cell.row.rate: cell for cell in old}
        for cell in new:
            if (other := others.get(cell.row.rate)) is None:
                continue
            for name in _COMPARED:
                if name in cell.row.measured and name in other.row.measured:
                    yield (f"{name} of {arm} over {before} at {cell.row.rate:g}/s",
                           cell.row.measured[name] / other.row.measured[name],
                           cell.predicted[name] / other.predicted[name])
