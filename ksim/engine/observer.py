"""What an engine lets others know of itself: facts with their times, for whoever looks later.

An engine goes ahead of SimPy's clock.  But when it is looked at, it has taken all turns that begin before, so no fact
of an earlier time is missing.  A `Recorder` takes the engine's steps to the log, as columns, hundreds at once.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappush
from itertools import chain
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np
from attrs import define, field

from ksim.cost.step import Timer
from ksim.engine.loop_times import Horizon
from ksim.flow.batch import Batch, Batches, BatchRuns
from ksim.flow.costs import ClockScaling, StepSummary
from ksim.flow.events import Admitted, StepBlock
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.steps import StepColumns
from ksim.scheduling.engine_loop import EngineLoop, Turn
from ksim.scheduling.job import Job
from ksim.scheduling.scheduler import Scheduler

__all__ = ["ENDED", "FIRST_TOKEN", "RESOLUTION", "SENT", "Answer", "ObservedLoop", "Observer",
           "Reading", "TurnClock", "first_tokens", "Recorder"]


#: Steps that are logged at once, and how many are enough where they are priced already.
ENOUGH, WORTHWHILE = 512, 128


@define(eq=False)
class Recorder:
    """The steps of engine `number` that `log` does not have yet; the last of them may still be in flight."""

    number: int
    timer: Timer
    log: Log
    _recorded: int = 0
    _batches: BatchRuns = field(factory=BatchRuns)
    _launched: list[tuple[float, ...]] = field(factory=list)
    _completed: list[tuple[float, float]] = field(factory=list)
    _paces: list[ClockScaling] = field(factory=list)
    _priced: tuple[Batches, StepColumns] | None = None  # of the steps that will be logged next
    _enough: int = ENOUGH
    _logged: StepBlock | None = None  # the steps that were logged last

    def last_pass(self, now: float) -> tuple[Batch, float] | None:
        """The batch and the seconds of the last pass that was taken in by *now*; None where it is not known."""
        for place in range(len(self._completed) - 1, -1, -1):
            if self._completed[place][0] <= now + RESOLUTION:
                _, _, start, end, *_ = self._launched[place]
                return self._batches[place], end - start
        return last_logged(self._logged, now)

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
            return [*self.timer.summarize(batches)] if batches else []
        known = Batches.of(BatchRuns([*self._batches.runs, *((batch, 1) for batch in batches)]).cut(completed))
        priced = self.timer.price(known)
        self._priced, self._enough = (known, priced), completed
        summaries = list(StepSummary.of(priced.costs, priced.launch_seconds))
        return [*summaries[before:],
                *map(self.timer.summarize, batches[max(completed - before, 0):])]

    def launch(self, batch: Batch, scheduled: float, prepared: float, start: float, end: float, pace: ClockScaling,
               waiting: int, running: int, blocks: int) -> None:
        """Note a step that was launched."""
        self._batches.append(batch)
        self._launched.append((scheduled, prepared, start, end, waiting, running, blocks))
        self._paces.append(pace)

    def repeat(self, latest: Batch, launched: Sequence[tuple[float, ...]], paces: Sequence[ClockScaling],
               completed: Sequence[tuple[float, float]]) -> None:
        """Note steps that go on with the decodes of the *latest* one, and as many that have completed."""
        self._batches.follow(latest, len(launched))
        self._launched += launched
        self._paces += paces
        self._completed += completed
        if len(self._completed) >= self._enough:
            self.flush()

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
        numbers = np.fromiter(chain.from_iterable(self._launched[:count]), np.float64, 7 * count)
        scheduled, prepared, start, end, waiting, running, blocks = numbers.reshape(-1, 7).T
        taken, time = np.array(self._completed).T
        batches, costs = self._known(count)
        self._logged = StepBlock(
            engine=self.number, first=self._recorded, time=time, scheduled=scheduled, prepared=prepared, start=start,
            end=end, taken=taken, batches=batches, waiting=waiting.astype(np.int64), running=running.astype(np.int64),
            blocks=blocks.astype(np.int64), costs=[costs], scalings=[ClockScaling.of(self._paces[:count])])
        self.log.record(self._logged)
        self._recorded += count
        self._completed.clear()
        del self._launched[:count], self._paces[:count]
        self._priced, self._enough = None, ENOUGH

    def _known(self, count: int) -> tuple[Batches, StepColumns]:
        """The first *count* steps, which are taken away, and their prices, which may be known from `foresee`."""
        first = self._batches.cut(count)
        if self._priced and len(self._priced[0]) == count:
            return self._priced
        batches = Batches.of(first)
        return batches, self.timer.price(batches)


def last_logged(block: StepBlock | None, now: float) -> tuple[Batch, float] | None:
    """The batch and the seconds of the last step of *block* that was taken in by *now*; None if there is none."""
    row = -1 if block is None else int(np.searchsorted(block.taken, now + RESOLUTION, side="right")) - 1
    return None if block is None or row < 0 else (block.batches[row], float(block.end[row] - block.start[row]))


#: What happens to a sequence, in this order.
SENT, FIRST_TOKEN, ENDED = range(3)
#: Times that are closer than this, in seconds, are one moment: sums of floats in another order differ.
RESOLUTION = 1e-9


class Answer(NamedTuple):
    """What became of a sequence of a request, as whoever sent it to an engine sees it; `ticket` orders those of one
    moment.

    With its end, the engine's part of the request may be `over`: it has no other sequences.
    """

    time: float
    engine: int
    kind: int
    ticket: int
    request: Request
    over: bool


@define(eq=False)
class TurnClock:
    """What time it is `now`: that of the turn that an engine begins, which may be ahead of the clock of `env`."""

    env: Horizon
    turn: float = field(default=-inf, init=False)

    @property
    def now(self) -> float:
        return max(self.turn, self.env.now)


class Reading(NamedTuple):
    """An engine's metrics since a `time`: jobs that wait and run, used KV blocks, and where adapters are.

    If it says `since`, those that had come by then wait, too (Observer.newcomers).
    """

    time: float
    waiting: int
    running: int
    blocks: int
    adapters: Mapping[str, str] = {}
    since: float | None = None


@define(eq=False)
class Observer:
    """Keeps the facts of engine `number`.

    `answers` is a heap that engines share.  Readings are kept for scrapes every `interval` seconds: the last before
    each; with an interval of 0, all of them.  `tells` are what has entered and left the cache since the last batch of
    `events`: a key, or ~key for one that left; `below` the same of the engine's own store below the GPU.  What is None
    is not kept.  Whoever tells of stores that engines share looks at the `clock`.  While turns are taken whose times
    are not known, or that have been told of, it is `silent`.  `newcomers` says how many have come by a moment that are
    not counted yet.  `admissions` are heaps of whoever asks for them, each with when requests were admitted first, and
    the share of their prompts that was cached.  While all is `plain`, with no adapters and no request of several
    sequences, ends can be foreseen.
    """

    number: int
    answers: list[Answer] | None = None
    interval: float | None = None
    tells: list[int] | None = None
    below: list[int] = field(factory=list)
    clock: TurnClock | None = None
    silent: bool = field(default=False, init=False)
    plain: bool = field(default=True, init=False)
    newcomers: Callable[[float], int] = field(default=lambda moment: 0, init=False)
    admissions: list[list[tuple[float, float]]] = field(factory=list, init=False)
    readings: deque[Reading] = field(factory=deque, init=False)
    events: deque[tuple[float, Sequence[int], Sequence[int]]] = field(factory=deque, init=False)
    _until: float = field(default=-inf, init=False)  # the end of the interval in which the last reading was taken
    _tickets: int = field(default=0, init=False)

    def sent(self, now: float, request: Request) -> None:
        """A sequence has been sent to the engine."""
        self.plain = self.plain and not request.sequence
        self._answer(now, SENT, request, False)

    def first_token(self, time: float, request: Request) -> None:
        """The first token of a sequence has come back."""
        self._answer(time, FIRST_TOKEN, request, False)

    def ended(self, time: float, request: Request, over: bool) -> None:
        """The last token of a sequence has come back."""
        if not self.silent:
            self._answer(time, ENDED, request, over)

    def _answer(self, time: float, kind: int, request: Request, over: bool) -> None:
        if self.answers is not None:
            self._tickets += 1
            heappush(self.answers, Answer(time, self.number, kind, self._tickets, request, over))

    def admitted(self, event: Admitted) -> None:
        """A request has been admitted; one that was preempted is no news."""
        for heap in self.admissions if not event.again else ():
            heappush(heap, (event.time, event.cached / event.known))

    def take_in(self, turn: Turn, scheduler: Scheduler, now: float, delivered: float) -> None:
        """The engine has taken in the output of *turn*; users have its tokens when they are *delivered*."""
        if self.answers is not None:
            for request in first_tokens(turn):
                self.first_token(delivered, request)
        self.measure(scheduler, now)
        if self.tells or self.below:
            self.flush(now)

    def measure(self, scheduler: Scheduler, now: float) -> None:
        """Read the metrics *now*."""
        if self.interval is not None:
            store = scheduler.adapters
            self.read(Reading(now, len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used,
                              store.places if store else {}))

    def measure_repeats(self, scheduler: Scheduler, times: Sequence[tuple[float, float]],
                        blocks: Sequence[int]) -> None:
        """Read the metrics of turns that repeat a schedule: when each began and ended, and the KV blocks used in it."""
        if self.interval is None:
            return
        store, last = scheduler.adapters, len(times) - 1
        places = store.places if store else {}
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        for turn, (begun, taken) in enumerate(times):
            if self.interval == 0:
                self.read(Reading(begun, waiting, running, blocks[turn], places))
            elif turn < last and times[turn + 1][1] <= self._until:
                continue  # the next one takes its place
            self.read(Reading(taken, waiting, running, blocks[turn], places))

    def read(self, reading: Reading) -> None:
        """Keep *reading*, in place of an earlier one that no scrape will see."""
        if reading.time <= self._until:
            self.readings[-1] = reading
            return
        self.readings.append(reading)
        if self.interval:
            self._until = ceil((reading.time - RESOLUTION) / self.interval) * self.interval + RESOLUTION

    def flush(self, now: float) -> None:
        """Send the events so far as a batch."""
        if self.tells is not None and (self.tells or self.below):
            self.events.append((now, self.tells[:], self.below[:]))
            self.tells.clear()
            self.below.clear()


def first_tokens(turn: Turn) -> list[Request]:
    """The requests of which *turn*, just taken in, has the first token."""
    sampling = [entry.job.request for entry in turn.schedule.entries
                if entry.samples and _is_first(entry.job, turn.index)]
    joining = [job.request for job in turn.schedule.joining
               if _is_first(job, turn.index) or (job.in_decode_set and not job.emitted)]
    return sampling + joining if joining else sampling


def _is_first(job: Job, index: int) -> bool:
    """Whether the first token of *job* is of step *index*."""
    return bool(job.emitted) and job.emitted[0].first == index


@define(eq=False, kw_only=True)
class ObservedLoop(EngineLoop):
    """Tells the `observer` what each turn does, with the times of `port`; `delivered` says when users have its tokens.
    """

    observer: Observer
    port: Any
    delivered: Callable[[Turn], float]

    def begin_turn(self, now: float) -> Turn:
        if self.observer.silent:
            return super().begin_turn(now)
        turn = self._begin_at(now, self.observer.clock) if self.observer.clock else super().begin_turn(now)
        if turn.empty and self.idle:  # no output will come
            self.observer.flush(now)
        if self.observer.interval == 0:
            self.observer.measure(self.scheduler, now)
        return turn

    def _begin_at(self, now: float, clock: TurnClock) -> Turn:
        clock.turn = now
        turn = super().begin_turn(now)
        clock.turn = -inf
        return turn

    def _take_in(self, turn: Turn) -> list[Job]:
        finished = super()._take_in(turn)
        if not self.observer.silent:
            self.observer.take_in(turn, self.scheduler, self.port.now, self.delivered(turn))
        return finished
