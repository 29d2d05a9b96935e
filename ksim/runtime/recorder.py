"""What an engine did, step by step, until there is enough of it to be written down as columns."""

import numpy as np
from attrs import define, field

from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.log import Log
from ksim.flow.stretch import Paces, Stretch
from ksim.flow.timeline import Pace

#: Steps that are written down in one go.
ENOUGH = 512


@define(eq=False)
class Recorder:
    """The steps of engine `number` that `log` has not got yet; those at the end of them may not have landed."""

    number: int
    timer: StepTimer
    log: Log
    _recorded: int = 0
    _batches: list[Batch] = field(factory=list)
    _launched: list[tuple[float, ...]] = field(factory=list)
    _landed: list[tuple[float, float]] = field(factory=list)
    _paces: list[Pace] = field(factory=list)

    def launch(self, batch: Batch, scheduled: float, prepared: float, start: float, end: float, pace: Pace,
               waiting: int, running: int, blocks: int) -> None:
        """Note a step that is on its way."""
        self._batches.append(batch)
        self._launched.append((scheduled, prepared, start, end, waiting, running, blocks))
        self._paces.append(pace)

    def land(self, taken: float, delivered: float) -> None:
        """Note that the oldest step on its way was taken in, and delivered."""
        self._landed.append((taken, delivered))
        if len(self._landed) >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Write down what has landed."""
        count = len(self._landed)
        if not count:
            return
        scheduled, prepared, start, end, waiting, running, blocks = np.array(self._launched[:count]).T
        taken, time = np.array(self._landed).T
        batches = Batches.of(self._batches[:count])
        self.log.record(Stretch(
            self.number, self._recorded, time, scheduled, prepared, start, end, taken, batches,
            waiting.astype(np.int64), running.astype(np.int64), blocks.astype(np.int64), [self.timer.price(batches)],
            [Paces.of(self._paces[:count])]))
        self._recorded += count
        self._landed.clear()
        for column in (self._batches, self._launched, self._paces):
            del column[:count]
