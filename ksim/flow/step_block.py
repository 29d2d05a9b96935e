"""Consecutive steps of an engine as columns: what `Stepped` says of one step."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.batches import Batches
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.events import Stepped
from ksim.flow.steps import StepColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Columns of `Stepped`: moments in seconds, and counts.
MOMENTS = ("time", "scheduled", "prepared", "start", "end", "taken")
COUNTS = ("waiting", "running", "blocks")


@frozen(eq=False, kw_only=True)
class StepBlock:
    """Steps `first`, `first` + 1, ... of an engine; seconds and counts are as in `Stepped`, in columns of (steps,).

    `costs` and `scalings` have one entry for each pipeline stage.
    """

    engine: int
    first: int
    time: Floats
    scheduled: Floats
    prepared: Floats
    start: Floats
    end: Floats
    taken: Floats
    batches: Batches
    waiting: Ints
    running: Ints
    blocks: Ints
    costs: Sequence[StepColumns]
    scalings: Sequence[ClockScaling]

    def __len__(self) -> int:
        return len(self.batches)

    @classmethod
    def of(cls, steps: Sequence[Stepped]) -> "StepBlock":
        """Those of one engine, in the order of their index, none missing; there is at least one."""
        moments = np.array(list(map(attrgetter(*MOMENTS), steps)), np.float64).T.copy()
        counts = np.array(list(map(attrgetter(*COUNTS), steps)), np.int64).T.copy()
        stages = range(len(steps[0].step_costs))
        return cls(
            engine=steps[0].engine, first=steps[0].index, batches=Batches.of([step.batch for step in steps]),
            costs=[StepColumns.of([step.step_costs[stage] for step in steps]) for stage in stages],
            scalings=[ClockScaling.of([step.scalings[stage] if step.scalings else AT_BOOST for step in steps])
                      for stage in stages],
            **dict(zip(MOMENTS, moments, strict=True)), **dict(zip(COUNTS, counts, strict=True)))

    def steps(self) -> Iterator[Stepped]:
        """One by one."""
        for row, batch in enumerate(self.batches):
            moments: dict[str, Any] = {name: float(getattr(self, name)[row]) for name in MOMENTS}
            counts: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in COUNTS}
            yield Stepped(**moments, **counts, engine=self.engine, index=self.first + row, batch=batch,
                          step_costs=tuple(costs[row] for costs in self.costs),
                          scalings=tuple(scaling[row] for scaling in self.scalings))
