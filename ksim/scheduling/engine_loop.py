"""The loop of an engine without a clock, as vLLM's `EngineCore.step_with_batch_queue`.

A `ScheduleForecast` knows what its scheduler will decide: schedules just like the latest, and schedules that no arrival
can change.
"""

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Protocol

from attrs import define, field

from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Job, Schedule
from ksim.scheduling.queues import ArrivalQueue, WaitingQueue
from ksim.scheduling.scheduler import Scheduler


@define(eq=False)
class Turn:
    """One turn of the loop: the `schedule` made `now`, which is the engine's step `index` unless it is `empty`.

    `work` is whatever an engine wants to remember of the batch.  `output` is what the workers of a KV connector report
    with the batch, once its last kernel is `launched`; a port sets it before `wait` or `sleep` ends.
    """

    schedule: Schedule
    now: float
    index: int
    empty: bool
    work: Any = None
    output: ConnectorOutput | None = None
    launched: float = 0.0


class Port(Protocol):
    """What tells the loop the time, and makes it wait: by SimPy events, by arithmetic, or not at all.

    What `launch`, `wait` and `sleep` return, the loop yields to whoever runs it.
    """

    @property
    def now(self) -> float:
        """When the next turn begins."""
        ...

    def launch(self, turn: Turn) -> Iterable[Any]:
        """Send the batch of *turn* to the GPUs, if it has one, and stay until the loop can go on."""
        ...

    def wait(self, turn: Turn) -> Iterable[Any]:
        """Wait until the batch of *turn*, if it has one, is computed and its tokens are taken in."""
        ...

    def deliver(self, turn: Turn, finished: list[Job]) -> None:
        """Send the tokens of *turn* to the users; they are the last ones of the jobs *finished*."""
        ...

    def sleep(self, turn: Turn) -> Iterable[Any]:
        """Wait for a request, or for the end of a transfer: *turn* scheduled nothing, and nothing is in flight.

        A port that sets the turn's `output` gets `deliver` called for the turn.
        """
        ...


@define(eq=False)
class EngineLoop:
    """Makes a schedule every turn, and takes in the oldest once as many turns are in flight as the limits allow.

    A turn that schedules nothing takes its place in the queue too, as in vLLM.
    `steps` counts the batches launched.  `scheduler` is ksim's, or anything that
    has its `schedule`, `update` and `limits.depth`.
    """

    scheduler: Any
    in_flight: deque[Turn] = field(factory=deque, init=False)
    steps: int = field(default=0, init=False)
    _depth: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._depth = self.scheduler.limits.depth

    def run_turn(self, port: Port) -> Generator[Any, Any, Turn]:
        """Take a turn at the pace of *port*, and return it."""
        turn = self.begin_turn(port.now)
        yield from port.launch(turn)
        if turn.empty and self.idle:
            self.in_flight.clear()
            yield from port.sleep(turn)
            if turn.output is not None:
                port.deliver(turn, self._take_in(turn))
        elif self.full:
            oldest = self.in_flight[0]
            yield from port.wait(oldest)
            port.deliver(oldest, self.take_in_oldest())
        return turn

    def run_turn_at_once(self, port: Port) -> None:
        """Take a turn with a *port* that never waits."""
        for event in self.run_turn(port):
            raise AssertionError(f"a port without a clock waits for {event}")

    def begin_turn(self, now: float) -> Turn:
        """Make a schedule, and put it in flight."""
        return self.put(self.scheduler.schedule(now), now)

    def put(self, schedule: Schedule, now: float) -> Turn:
        """Put a *schedule* in flight."""
        empty = not schedule
        self.steps += not empty
        turn = Turn(schedule, now, self.steps - 1, empty)
        self.in_flight.append(turn)
        return turn

    def count_step(self) -> int:
        """Count one more step of the engine, and return its number."""
        self.steps += 1
        return self.steps - 1

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return all(turn.empty for turn in self.in_flight)

    @property
    def full(self) -> bool:
        """Whether the oldest turn must be taken in before the next one begins."""
        return len(self.in_flight) >= self._depth

    def take_in_oldest(self) -> list[Job]:
        """Update the scheduler with the oldest turn in flight; return the jobs now done."""
        return self._take_in(self.in_flight.popleft())

    def _take_in(self, turn: Turn) -> list[Job]:
        if turn.output is None:
            finished: list[Job] = self.scheduler.update(turn.schedule, turn.index)
        else:
            finished = self.scheduler.update(turn.schedule, turn.index, turn.output)
        return finished

    # Turns that are known before they are taken: docs/evidence/speed.md.

    def repeat_turn(self) -> bool:
        """Take a turn that repeats the latest schedule, and take in one; return False, with nothing done, where blocks
        are short.

        Only as many may be repeated as `ScheduleForecast.repeats_left` says, and `sync` must follow the last of them.
        """
        if not self.scheduler.repeat():
            return False
        self.steps += 1
        return True

    def sync(self) -> None:
        """Bring the scheduler and the turn in flight, if there is one, up to date after repeated turns."""
        schedule = self.scheduler.sync(self.steps - 1 - len(self.in_flight))
        for turn in self.in_flight:
            turn.schedule, turn.index = schedule, self.steps - 1


class Foreseeing(Protocol):
    """Foresees the schedules of a scheduler, as `ScheduleForecast` does."""

    def independent_of_arrivals(self, newcomers: bool) -> bool: ...

    def repeats_left(self) -> int: ...


def forecast_of(scheduler: Any) -> Foreseeing:
    """What foresees the schedules of *scheduler*: itself, if it does that."""
    forecast: Foreseeing = scheduler if hasattr(scheduler, "repeats_left") else ScheduleForecast(scheduler)
    return forecast


#: Where fewer jobs wait, a newcomer soon matters, and the look ahead does not pay.
QUEUE = 8


@define(eq=False)
class ScheduleForecast:
    """Foresees the schedules of `scheduler`, and changes nothing: `Scheduler.repeat` makes those that are foreseen."""

    scheduler: Scheduler
    _timeless: bool = field(init=False)
    _in_line: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        limits, guard = self.scheduler.limits, self.scheduler.guard
        self._timeless = not guard.proposes and self.scheduler.connector is None
        self._in_line = (self._timeless and not self.scheduler.encodes
                         and isinstance(self.scheduler.waiting, ArrivalQueue) and not guard.demands
                         and not limits.long_prefill_token_threshold and limits.prefill_schedule_interval == 1
                         and not self.scheduler.limits_adapters and limits.pipeline_parallel_size == 1)

    def independent_of_arrivals(self, newcomers: bool) -> bool:
        """Whether the next schedule is the same whenever it is made, and whatever jobs come before it, if any may come
        (*newcomers*)."""
        if not newcomers:
            return self._timeless
        return self._in_line and len(self.scheduler.waiting) >= QUEUE and self._closed()

    def _closed(self) -> bool:
        """Whether the next schedule has no sequence slot or no tokens left for a newcomer behind the waiting jobs.

        The jobs before it may get more tokens than are counted here, or be refused, which ends admission too.
        """
        scheduler, decodes, waiting = self.scheduler, self.scheduler.decodes, self.scheduler.waiting
        limits, running = scheduler.limits, scheduler.running
        tokens = limits.max_num_batched_tokens - decodes.decoding(scheduler.steps + 1)
        if len(waiting) > min(limits.active - len(running), tokens):
            return True
        for job in running[decodes.length:]:
            if not job.num_output_placeholders:
                tokens -= min(job.backlog, limits.max_model_len - 1 - job.num_computed_tokens)
        for job in waiting:
            if tokens <= 0:
                return True
            if not decodes.awaits(job):
                tokens -= job.num_tokens if self._finds_nothing(job) else 1
        return tokens <= 0

    def _finds_nothing(self, job: Job) -> bool:
        """Whether a waiting *job* cannot find a prefix in the cache: it shares no prompt, and never ran."""
        return not job.preemptions and self.scheduler.cache.is_private(job.block_table)

    def repeats_left(self) -> int:
        """How many more schedules will be just like the latest, if no job comes and none is aborted."""
        scheduler = self.scheduler
        latest, decodes, waiting = scheduler.latest, scheduler.decodes, scheduler.asked
        if not scheduler.steady or latest.entries or latest.preempted or latest.decodes is not decodes.members or (
                len(decodes.members) < len(scheduler.running)):
            return 0
        if scheduler.changed and (waiting or scheduler.connector is not None):
            return 0
        if waiting and not self._refuses_again(waiting):
            return 0
        left = decodes.first_end() - scheduler.steps - (not scheduler.limits.async_scheduling)
        if scheduler.connector is None:
            return left
        return min(left, scheduler.connector.quiet_steps(decodes, scheduler.steps))

    def _refuses_again(self, waiting: WaitingQueue) -> bool:
        """Whether the first job that waits is refused again: unless a policy puts others first, an admission changes
        its mind, or the cache has more of its prompt."""
        guard, decodes, first = self.scheduler.guard, self.scheduler.decodes, self.scheduler.next_in_line(waiting)
        return first is None or not (guard.reorders or guard.demands or decodes.awaits(first) or decodes.findable
                                     or self.scheduler.releases_soon)
