"""What an engine did, step by step, until there is enough of it to be written down as columns."""

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.costs import ClockScaling, StepSummary
from ksim.flow.log import Log
from ksim.flow.step_block import StepBlock
from ksim.flow.steps import StepColumns

#: Steps that are written down in one go, and how many are worth it where they are priced already.
ENOUGH, WORTHWHILE = 512, 128


@define(eq=False)
class Recorder:
    """The steps of engine `number` that `log` has not got yet; those at the end of them may not have completed."""

    number: int
    timer: StepTimer
    log: Log
    _recorded: int = 0
    _batches: list[Batch] = field(factory=list)
    _launched: list[tuple[float, ...]] = field(factory=list)
    _completed: list[tuple[float, float]] = field(factory=list)
    _paces: list[ClockScaling] = field(factory=list)
    _priced: tuple[Batches, StepColumns] | None = None  # of the steps that will be written down next
    _enough: int = ENOUGH

    def foresee(self, batches: Sequence[Batch], completions: int) -> list[StepSummary]:
        """What the clock must know of *batches* that are launched next, while so many steps land.

        If those make it enough to be written down, that is what they will be, and so they are priced for good.
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
        """Note a step that is on its way."""
        self._batches.append(batch)
        self._launched.append((scheduled, prepared, start, end, waiting, running, blocks))
        self._paces.append(pace)

    def complete(self, taken: float, delivered: float) -> None:
        """Note that the oldest step on its way was taken in, and delivered."""
        self._completed.append((taken, delivered))
        if len(self._completed) >= self._enough:
            self.flush()

    def flush(self) -> None:
        """Write down what has completed."""
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
        """The first so many steps, priced, unless they were foreseen."""
        if self._priced and len(self._priced[0]) == count:
            return self._priced
        batches = Batches.of(self._batches[:count])
        return batches, self.timer.price(batches)
