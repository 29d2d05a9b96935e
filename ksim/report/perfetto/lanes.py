"""When each pipeline stage works on each step, in whole nanoseconds."""

import numpy as np
from attrs import frozen

from ksim.results.arrays import Floats, Ints, each, sums
from ksim.results.history import History


@frozen(eq=False)
class Lanes:
    """One row per step and pipeline stage; `slices` is how many kernel slices it is worth, on all its ranks."""

    history: History
    stage: Ints
    begin: Ints
    end: Ints
    slices: Ints

    @classmethod
    def of(cls, history: History) -> "Lanes":
        steps = history.steps
        stage, blocks = steps.lanes.stage, steps.lanes.blocks
        begin, end = np.zeros(len(stage), np.int64), np.zeros(len(stage), np.int64)
        for place, built in enumerate(history.engines):
            ready = steps.start[steps.rows(place)]
            for number in range(built.stages):
                rows = np.flatnonzero((steps.engine[steps.lane_step] == place) & (stage == number))
                begin[rows], end[rows], ready = _in_turn(ready, steps.lane_seconds[rows])
        sizes = {key: sum(block.repeat * len(block.places) for block in plan)
                 for key, plan in dict(zip(map(id, blocks), blocks, strict=True)).items()}
        return cls(history, stage, begin, end, each(blocks, lambda plan: sizes[id(plan)]) * steps.lane_ranks)

    def first(self, budget: int) -> Ints:
        """The lanes of the earliest steps that together have at most *budget* slices, and of one step at least."""
        steps = self.history.steps
        order = np.argsort(steps.start, kind="stable")
        total = np.cumsum(sums(steps.lane_step, self.slices, len(steps))[order])
        chosen = order[: max(1, int(np.searchsorted(total, budget, side="right")))]
        return np.flatnonzero(np.isin(steps.lane_step, chosen))

    def within(self, window: tuple[float, float]) -> Ints:
        """The lanes that touch *window*, in seconds."""
        after, before = (round(1e9 * moment) for moment in window)
        return np.flatnonzero((self.end > after) & (self.begin < before))


def _in_turn(ready: Floats, seconds: Floats) -> tuple[Ints, Ints, Floats]:
    """Begin and end of each step on a stage that takes them in turn, each once it is *ready*; the end in seconds too.

    The log says when a step begins on its first stage; on the others it begins
    when the stage before is through with it and this one with the step before.
    """
    earlier = np.cumsum(seconds) - seconds
    begin = np.maximum.accumulate(ready - earlier) + earlier
    first, last = (np.rint(1e9 * moment).astype(np.int64) for moment in (begin, begin + seconds))
    last[:-1] = np.minimum(last[:-1], first[1:])
    return first, last, begin + seconds
