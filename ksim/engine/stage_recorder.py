"""Takes the steps of an engine that is played event by event to the log, as columns, hundreds at once."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import define, field, frozen

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


#: A step, when its tokens were delivered, and when they were taken in.
Noted = tuple[PendingStep, float, float]


@define(eq=False)
class StageRecorder:
    """The steps of an engine, or of all engines of a data-parallel group, that `log` does not have yet.

    Each engine has `timers`, one for each stage.  Steps are priced for the log when they are logged, those of engines
    that price alike together; only what the clock must know of a step is worked out before.
    """

    log: Log
    timers: dict[int, Sequence[Timer]] = field(factory=dict)
    #: The steps of each engine in order.
    _steps: dict[int, list[Noted]] = field(factory=dict, init=False)
    #: How many steps of each engine the log has.
    _logged: Counter[int] = field(factory=Counter, init=False)
    #: The steps of each engine that were logged last.
    _latest: dict[int, StepBlock] = field(factory=dict, init=False)

    def last_pass(self, engine: int, now: float) -> tuple[Batch, float] | None:
        """The batch and the seconds of the last pass of *engine* that was taken in by *now*; None where it is not
        known."""
        for work, _, taken in reversed(self._steps.get(engine, ())):
            if taken <= now + RESOLUTION and work.in_flight is not None:
                return work.batch, work.in_flight.end - work.in_flight.start
        return last_logged(self._latest.get(engine), now)

    def add(self, engine: int, work: PendingStep, time: float, taken: float) -> None:
        """Note the step of *work*, the next one of *engine*: its tokens were taken in, and users have them."""
        steps = self._steps.setdefault(engine, [])
        steps.append((work, time, taken))
        # Engines of a group take their steps together, but users have the tokens of some a little later.
        if len(steps) % ENOUGH == 0 and (len(steps) > ENOUGH or min(map(len, self._steps.values())) >= ENOUGH):
            self._record({engine: steps[:ENOUGH] for engine, steps in self._steps.items() if len(steps) >= ENOUGH})

    def flush(self) -> None:
        """Log what has been noted."""
        while noted := {engine: steps[:ENOUGH] for engine, steps in self._steps.items() if steps}:
            self._record(noted)

    def _record(self, noted: Mapping[int, Sequence[Noted]]) -> None:
        """Log the steps *noted*, which are the first of each engine."""
        alike = defaultdict[Hashable, list[int]](list)
        for engine in noted:
            alike[tuple(timer.prices for timer in self.timers[engine])].append(engine)
        for engines in alike.values():
            self._record_alike({engine: noted[engine] for engine in engines}, self.timers[engines[0]])

    def _record_alike(self, noted: Mapping[int, Sequence[Noted]], timers: Sequence[Timer]) -> None:
        """Log the steps *noted* of engines that price like *timers*."""
        # Engines without a batch compute the same dummy step, which is one object.
        distinct = {id(step[0]): step[0] for steps in noted.values() for step in steps}
        places = {key: place for place, key in enumerate(distinct)}
        known = _Columns.of([*distinct.values()], timers)
        for engine, steps in noted.items():
            del self._steps[engine][:len(steps)]
            works, time, taken = zip(*steps, strict=True)
            columns = known.taken(np.array([places[id(work)] for work in works]))
            scheduled, prepared, start, end = columns.moments
            waiting, running, blocks = columns.counts
            block = self._latest[engine] = StepBlock(
                engine=engine, first=self._logged[engine], time=np.array(time), scheduled=scheduled, prepared=prepared,
                start=start, end=end, taken=np.array(taken), batches=Batches.of([work.batch for work in works]),
                waiting=waiting, running=running, blocks=blocks, costs=columns.costs, scalings=columns.scalings)
            self.log.record(block)
            self._logged[engine] += len(works)


@frozen(eq=False)
class _Columns:
    """What the log has of steps, in columns of (steps,): `moments` and `counts` are rows, one for each number."""

    moments: Any
    counts: Any
    costs: Sequence[StepColumns]
    scalings: Sequence[ClockScaling]

    @classmethod
    def of(cls, steps: Sequence[Any], timers: Sequence[Timer]) -> "_Columns":
        """The columns of *steps*, priced stage by stage with *timers*."""
        return cls(np.array([*map(_WORK, steps)], np.float64).T.copy(),
                   np.array([*map(_COUNTS, steps)], np.int64).T.copy(), _costs(steps, timers),
                   [ClockScaling.of([step.in_flight.scalings[stage] for step in steps])
                    for stage in range(len(timers))])

    def taken(self, rows: Any) -> "_Columns":
        """The steps at *rows*."""
        if len(rows) == len(self.moments.T) and (rows[1:] > rows[:-1]).all():
            return self  # these are all of them
        return _Columns(self.moments[:, rows], self.counts[:, rows],
                        [costs.taken(rows).compacted() for costs in self.costs],
                        [scaling.taken(rows) for scaling in self.scalings])


def _costs(steps: Sequence[Any], timers: Sequence[Timer]) -> list[StepColumns]:
    """The costs of *steps*, stage by stage, with what the last stages waited for other ranks."""
    batches = Batches.of([step.computed for step in steps])
    tokens = [step.tokens_by_rank for step in steps] if steps[0].tokens_by_rank else ()
    costs = [timer.price(batches, tokens) for timer in timers]
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
