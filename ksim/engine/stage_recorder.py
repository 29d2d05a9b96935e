"""Takes the steps of an engine that is played event by event to the log, as columns, hundreds at once."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import define, field

from ksim.cost.step import Timer
from ksim.engine.engine import PendingStep
from ksim.engine.observer import ENOUGH, RESOLUTION, last_logged
from ksim.flow.batch import Batch, Batches
from ksim.flow.costs import ClockScaling, Costs
from ksim.flow.events import StepBlock
from ksim.flow.log import Log
from ksim.flow.steps import KernelColumns, KernelKind, Shapes, StepColumns

__all__ = ["StageRecorder", "waits"]

_WORK = attrgetter("scheduled", "prepared", "in_flight.start", "in_flight.end")
_COUNTS = attrgetter("waiting", "running", "blocks")


@define(eq=False)
class StageRecorder:
    """The steps of engine `number`, which has a timer for each stage, that `log` does not have yet.

    They are priced for the log when they are logged; only what the clock must know of a step is worked out before.
    """

    number: int
    timers: Sequence[Timer]
    log: Log
    _steps: list[tuple[PendingStep, float, float]] = field(factory=list, init=False)
    _logged: StepBlock | None = field(default=None, init=False)  # the steps that were logged last

    def last_pass(self, now: float) -> tuple[Batch, float] | None:
        """The batch and the seconds of the last pass that was taken in by *now*; None where it is not known."""
        for work, _, taken in reversed(self._steps):
            if taken <= now + RESOLUTION and work.in_flight is not None:
                return work.batch, work.in_flight.end - work.in_flight.start
        return last_logged(self._logged, now)

    def add(self, work: PendingStep, time: float, taken: float) -> None:
        """Note the step of *work*, the next one of the engine: its tokens were taken in, and users have them."""
        self._steps.append((work, time, taken))
        if len(self._steps) >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Log what has been noted."""
        if not self._steps:
            return
        steps, time, taken = zip(*self._steps, strict=True)
        self._steps = []
        scheduled, prepared, start, end = np.array([*map(_WORK, steps)], np.float64).T.copy()
        waiting, running, blocks = np.array([*map(_COUNTS, steps)], np.int64).T.copy()
        self._logged = StepBlock(
            engine=self.number, first=steps[0].index, time=np.array(time), scheduled=scheduled, prepared=prepared,
            start=start, end=end, taken=np.array(taken), batches=Batches.of([step.batch for step in steps]),
            waiting=waiting, running=running, blocks=blocks, costs=self._costs(steps), scalings=[
                ClockScaling.of([step.in_flight.scalings[stage] for step in steps])
                for stage in range(len(self.timers))])
        self.log.record(self._logged)

    def _costs(self, steps: Sequence[Any]) -> list[StepColumns]:
        """The costs of *steps*, stage by stage, with what the last stages waited for other ranks."""
        batches = Batches.of([step.computed for step in steps])
        tokens = [step.tokens_by_rank for step in steps] if steps[0].tokens_by_rank else ()
        costs = [timer.price(batches, tokens) for timer in self.timers]
        waited = np.array([step.in_flight.waits for step in steps]).reshape(len(steps), -1)
        alone = len(costs) - waited.shape[1]
        return [*costs[:alone], *(stage.followed_by(waits(seconds)) for stage, seconds
                                  in zip(costs[alone:], waited.T, strict=True))]


def waits(seconds: Any) -> KernelColumns:
    """The waits of ranks that are done before others, in their next collective, of so many *seconds* each."""
    lasting = np.maximum(seconds, 0.0)
    nothing, first = np.broadcast_to(0.0, len(lasting)), np.broadcast_to(np.int32(0), len(lasting))
    return KernelColumns(
        kinds=[KernelKind("wait_for_ranks", "wait_for_ranks", "communication", group="data", source="convoy")],
        kind=first, shapes=Shapes([""], first, np.zeros((0, len(lasting)))), costs=Costs.of(seconds=lasting),
        waves=nothing, idle=nothing, roofline_ratio=np.broadcast_to(np.nan, len(lasting)), hidden=nothing)
