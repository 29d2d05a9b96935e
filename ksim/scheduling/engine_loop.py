"""The loop of an engine without a clock; vLLM's `EngineCore.step_with_batch_queue`."""

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Protocol

from attrs import define, field

from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule


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
