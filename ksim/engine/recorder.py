"""The steps of an engine on their way to the log, which takes them as columns, hundreds at once."""

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ksim.cost.passes import Timer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.costs import ClockScaling, StepSummary
from ksim.flow.log import Log
from ksim.flow.step_block import StepBlock
from ksim.flow.steps import StepColumns

#: Steps that are logged at once, and how many are enough where they are priced already.
ENOUGH, WORTHWHILE = 512, 128


@define(eq=False)
class Recorder:
    """The steps of engine `number` that `log` does not have yet; the last of them may still be in flight."""

    number: int
    timer: Timer
    log: Log
    _recorded: int = 0
    _batches: list[Batch] = field(factory=list)
    _launched: list[tuple[float, ...]] = field(factory=list)
    _completed: list[tuple[float, float]] = field(factory=list)
    _paces: list[ClockScaling] = field(factory=list)
    _priced: tuple[Batches, StepColumns] | None = None  # of the steps that will be logged next
    _enough: int = ENOUGH

    @property
    def prepared(self) -> float:
        """When the inputs of the step that was launched last were prepared."""
        return self._launched[-1][1]

    def foresee(self, batches: Sequence[Batch], completions: int) -> list[StepSummary]:
        """What the clock must know of *batches* that are launched next, while so many steps complete.

        If that makes enough steps to be logged at once, they are priced for the log right away.
        """
        completed, before = len(self._completed) + completions, len(self._batches)
        if completed < WORTHWHILE:
            return [*self.timer.summarize(batches)]
        known = Batches.of([*self._batches, *batches][:completed])
        priced = self.timer.price(known)
        self._priced, self._enough = (known, priced), completed
        summaries = list(StepSummary.of(priced.costs, priced.launch_seconds).rows(completed))
        return [*summaries[before:],
                *map(self.timer.summarize, batches[max(completed - before, 0):])]

    def launch(self, batch: Batch, scheduled: float, prepared: float, start: float, end: float, pace: ClockScaling,
               waiting: int, running: int, blocks: int) -> None:
        """Note a step that was launched."""
        self._batches.append(batch)
        self._launched.append((scheduled, prepared, start, end, waiting, running, blocks))
        self._paces.append(pace)

    def complete(self, taken: float, delivered: float) -> None:
        """Note when the oldest step in flight was taken in, and when its tokens were delivered."""
        self._completed.append((taken, delivered))
        if len(self._completed) >= self._enough:
            self.flush()

    def flush(self) -> None:
        """Log the steps that have completed."""
        count = len(self._completed)
        if not count:
            return
        scheduled, prepared, start, end, waiting, running, blocks = np.array(self._launched[:count]).T
        taken, time = np.array(self._completed).T
        batches, costs = self._known(count)
        self.log.record(StepBlock(
            engine=self.number, first=self._recorded, time=time, scheduled=scheduled, prepared=prepared, start=start,
            end=end, taken=taken, batches=batches, waiting=waiting.astype(np.int64), running=running.astype(np.int64),
            blocks=blocks.astype(np.int64), costs=[costs], scalings=[ClockScaling.of(self._paces[:count])]))
        self._recorded += count
        self._completed.clear()
        for column in (self._batches, self._launched, self._paces):
            del column[:count]
        self._priced, self._enough = None, ENOUGH

    def _known(self, count: int) -> tuple[Batches, StepColumns]:
        """The first *count* steps and their prices, which may be known from `foresee`."""
        if self._priced and len(self._priced[0]) == count:
            return self._priced
        batches = Batches.of(self._batches[:count])
        return batches, self.timer.price(batches)
