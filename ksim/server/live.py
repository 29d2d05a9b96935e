"""A fleet that is played against the wall clock.

Requests come in with `Live.submit`, and the listener of each is called with its tokens when it is time.  Before that,
each waits to be read (`Turns`).  `LiveLog` passes events to metrics and recordings, `Lateness` warns when the machine
cannot keep up, and `warm_up` computes before the first request what is computed only once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil, floor, inf
from time import perf_counter
from typing import Any, Protocol, TypeVar

from attrs import define, evolve, field

from ksim.cluster.cluster import Clients
from ksim.engine.event_engine import EventEngine, Sampled
from ksim.engine.loop_times import Horizon
from ksim.flow.batch import Batch
from ksim.flow.events import Event, Failed, Rejected, StepBlock
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.scheduling.job import Job
from ksim.simulation.assembly import build
from ksim.simulation.fleet import Fleet

__all__ = ["LiveLog", "Listener", "Handle", "SLICE", "Turns", "Lateness", "Live", "warm_up"]


class LiveLog(Log):
    """Passes events to `subscribers` by their kind, and all of them to the log `kept`, if there is one."""

    def __init__(self, kept: Log | None = None) -> None:
        super().__init__()
        self.kept = kept
        self.subscribers: dict[type[Event], list[Callable[[Any], object]]] = {}
        if kept is not None:
            self.engines, self.links = kept.engines, kept.links

    def subscribe(self, kind: type[Event], subscriber: Callable[[Any], object]) -> None:
        """Have *subscriber* called with each event of this *kind* when it happens."""
        self.subscribers.setdefault(kind, []).append(subscriber)

    def add(self, event: Event) -> None:
        """Pass on one event."""
        for subscriber in self.subscribers.get(type(event), ()):
            subscriber(event)
        if self.kept is not None:
            self.kept.gated = self.gated
            self.kept.add(event)

    def record(self, block: StepBlock) -> None:
        """Refuse a block of steps: engines of a live fleet log their steps one by one."""
        raise AssertionError("an engine of a live fleet goes ahead of the clock")


class Listener(Protocol):
    """Is called with what happens to one request; times are in simulated seconds.

    Calls come when that time has come on the wall clock, never earlier.  They are made in the event loop, so they must
    be short.
    """

    def tokens(self, count: int, time: float, sequence: int) -> None:
        """The client gets *count* further tokens, all those of one step, of one of the request's `n` sequences."""
        ...

    def finished(self, reason: str, time: float) -> None:
        """All sequences have ended.  *reason* is "stop" or "length", that of the first sequence, or "error"."""
        ...

    def refused(self, why: str) -> None:
        """The request is refused, and no other call follows."""
        ...


@define(eq=False)
class Handle:
    """A request in flight, and its listener."""

    request: Request
    listener: Listener
    got: int = field(default=0, init=False)  # tokens of the first sequence that a client has who is in time

    def count(self, job: Job, tokens: int) -> int:
        """Note so many further *tokens* of *job*; return how many of them a client gets.

        With a prefill pool, all come from the decode engine: also the first one, which the prefill engine has sampled.
        """
        if (params := job.kv_transfer_params) is not None:
            if params.do_remote_decode:
                return 0
            tokens += params.handed_over and not self.got
        if not job.request.sequence:
            self.got += tokens
        return tokens


#: Seconds of the wall clock after which the event loop gets its turn, if much has to be done.
SLICE = 2e-3

T = TypeVar("T")


@define(eq=False)
class Turns:
    """Does jobs one after the other, so that hundreds of requests that come at once do not stop all streams."""

    _jobs: deque[tuple[float, Callable[[], Any], "asyncio.Future[Any]"]] = field(factory=deque, init=False)

    @property
    def oldest(self) -> float | None:
        """When the first of those that wait came, by the wall clock."""
        return self._jobs[0][0] if self._jobs else None

    async def take(self, job: Callable[[], T], came: float) -> T:
        """What *job* returns or raises, when its turn has come; its request *came* at this time of the wall clock."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._jobs.append((came, job, answer))
        if len(self._jobs) == 1:
            loop.call_soon(self._go_on)
        return await answer

    def _go_on(self) -> None:
        """Do jobs for a while: at least one, and the last one to its end."""
        until = perf_counter() + SLICE
        while self._jobs:
            _, job, answer = self._jobs[0]
            if not answer.done():
                try:
                    answer.set_result(job())
                except StopIteration as error:  # which a future cannot hold
                    answer.set_exception(RuntimeError(repr(error)))
                except Exception as error:
                    answer.set_exception(error)
            self._jobs.popleft()
            if self._jobs and perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._go_on)
                return


LOGGER = logging.getLogger("ksim.server")
#: Seconds after which a token counts as late.
TOLERANCE = 5e-3
#: So many late tokens in a period cause no warning.
FEW = 50
#: Seconds of a period; there is one warning in a period at most.
PERIOD = 10.0


@define(eq=False)
class Lateness:
    """Counts the `tokens` that leave, and the `late` ones among them, by the wall clock."""

    tokens: int = field(default=0, init=False)
    late: int = field(default=0, init=False)
    _period: int = field(default=-1, init=False)
    _worst: float = field(default=0.0, init=False)  # in this period
    _before: float = field(default=0.0, init=False)  # and in the one before
    _start: tuple[int, int] = field(default=(0, 0), init=False)  # tokens, and late ones, before this period
    _warned: bool = field(default=False, init=False)  # in this period

    def note(self, seconds: float, tokens: int, wall: float, first: float | None = None) -> None:
        """So many *tokens* leave one after the other, the last one at *wall*, *seconds* after its simulated time.

        The *first* one was that late; by default, as late as the last.
        """
        self._turn(wall)
        self.tokens += tokens
        self._worst = max(self._worst, seconds)
        if seconds > TOLERANCE:
            first = seconds if first is None else first
            share = 1.0 if first >= TOLERANCE else (seconds - TOLERANCE) / (seconds - first)
            self.late += ceil(tokens * share)
            self._warn()

    def _warn(self) -> None:
        """Warn once in a period if more than 1 % of its tokens are late, and more than a few."""
        tokens, late = self.tokens - self._start[0], self.late - self._start[1]
        if late > max(FEW, tokens / 100) and not self._warned:
            self._warned = True
            LOGGER.warning("ksim: cannot keep up: %d of %d tokens left more than %.0f ms after their simulated times,"
                           " up to %.0f ms; latencies that clients measure are too long", late, tokens,
                           1e3 * TOLERANCE, 1e3 * self._worst)

    def recent(self, wall: float) -> float:
        """The worst lateness of this period and the one before."""
        self._turn(wall)
        return max(self._worst, self._before)

    def _turn(self, wall: float) -> None:
        """Begin a new period if *wall* is beyond this one."""
        if (period := int(wall // PERIOD)) != self._period:
            self._before = self._worst if period == self._period + 1 else 0.0
            self._period, self._worst, self._warned = period, 0.0, False
            self._start = self.tokens, self.late


#: Arrivals are whole numbers of this many seconds, and aborts lie half a tick behind one, so none is at one time with
#: an arrival.  Sums and differences of such times are exact, and so is a replay.
TICK = 2.0**-20


def _nothing(*told: Any) -> None:
    """Do nothing: nobody is told."""


@define(eq=False, repr=False)  # asyncio shows callbacks, whose owner would take seconds to show
class Live:
    """Plays `fleet` as time passes on the `wall` clock, times `speed`.

    Simulated time begins with the first request, and is never ahead of the wall clock.  Listeners are called at the
    simulated time of what happens, or later if the machine cannot keep up (`lag`).  It stops at the time of a request
    that has come and waits to be read, until its turn has come (`turns`).  `kept` is a log that keeps all events.
    If it `tells`, prefix caches report their changes (ksim.server.kv_events).
    """

    fleet: Fleet
    speed: float = 1.0
    wall: Callable[[], float] = perf_counter
    kept: Log | None = None
    tells: bool = False
    env: Horizon = field(factory=Horizon, init=False)
    log: LiveLog = field(init=False)
    cluster: Clients = field(init=False)
    handles: dict[int, Handle] = field(factory=dict, init=False)  # of requests that have not ended, by their ids
    _leaving: dict[int, Handle] = field(factory=dict, init=False)  # whose clients have gone, until that time is played
    draining: bool = field(default=False, init=False)
    lateness: Lateness = field(factory=Lateness, init=False)
    turns: Turns = field(factory=Turns, init=False)
    #: Called with each request that is sent, and with each that is aborted, and when: a recording sets them.
    sent: Callable[[Handle], object] = field(default=_nothing, init=False)
    aborted: Callable[[Handle, float], object] = field(default=_nothing, init=False)
    _begun: float | None = field(default=None, init=False)  # by the wall clock
    _latest: float = field(default=0.0, init=False)  # the latest arrival
    _submitted: int = field(default=0, init=False)
    _reasons: dict[int, Rejected | Failed] = field(factory=dict, init=False)  # why requests were not served
    _timer: asyncio.TimerHandle | asyncio.Handle | None = field(default=None, init=False)
    _ended: asyncio.Event | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.fleet, self.log = _stepping(self.fleet), LiveLog(self.kept)
        self.cluster = build(self.fleet, self.env, self.log, lambda: None, tells=self.tells)
        for engine in self.engines:
            engine.listener = self._deliver
        self.log.subscribe(Rejected, self._note_reason)
        self.log.subscribe(Failed, self._note_reason)
        self.advance()

    @property
    def engines(self) -> Sequence[EventEngine]:
        """The engines, by their numbers."""
        return self.cluster.engines  # type: ignore[return-value]

    @property
    def now(self) -> float:
        """The simulated time at this moment of the wall clock."""
        return 0.0 if self._begun is None else (self.wall() - self._begun) * self.speed

    @property
    def lag(self) -> float:
        """The worst lateness of tokens in the last 10 to 20 seconds, in seconds of the wall clock."""
        return max((self.now - self.env.due) / self.speed, self.lateness.recent(self.wall()))

    def submit(self, request: Request, listener: Listener, came: float | None = None) -> Handle:
        """Send *request*; its number and arrival are set here.

        It has come now, or earlier, when the wall clock showed *came*; but no earlier than what has been played.
        """
        came = self.wall() if came is None else came
        if self._begun is None:
            self._begun = came
        else:
            self._latest = max(self._latest, self._stamp(came), (floor(self.env.now / TICK) + 1) * TICK)
        handle = Handle(evolve(request, id=self._submitted, arrival=self._latest), listener)
        self._submitted += 1
        self.handles[handle.request.id] = handle
        self.sent(handle)
        self.env.call_at(handle.request.arrival, lambda: self._send(handle))
        self._wake()
        return handle

    def _send(self, handle: Handle) -> None:
        prepare = self.cluster.prepare
        request = prepare(handle.request) if prepare else handle.request
        self.cluster.send(request, partial(self._end, handle))

    def abort(self, handle: Handle) -> None:
        """Drop the request of *handle*, whose client has gone, if it has not ended; its listener hears nothing more."""
        if self.handles.pop(handle.request.id, None) is not None:
            moment = max(self._stamp(self.wall()), handle.request.arrival) + TICK / 2
            self.aborted(handle, moment)
            self._leaving[handle.request.id] = handle
            self.env.call_at(moment, lambda: self._leave(handle))
            self._wake()
            self._look_for_end()

    def _leave(self, handle: Handle) -> None:
        self.cluster.abort(handle.request.id)
        del self._leaving[handle.request.id]

    def _stamp(self, wall: float) -> float:
        """The simulated time of something that a client does when the clock shows *wall*."""
        return ceil((wall - (self._begun or 0.0)) * self.speed / TICK) * TICK

    # What happens.

    def advance(self) -> float:
        """Play what is due by now; return in how many seconds of the wall clock more is due, 0 or less if already."""
        env, until, came = self.env, self.wall() + SLICE, self.turns.oldest
        now = self.now if came is None else min(self.now, self._stamp(came))
        while env.due <= now:
            env.step()
            if self.wall() >= until:
                break
        return (env.due - self.now) / self.speed

    def _deliver(self, tokens: Sequence[Sampled]) -> None:
        """Tell listeners of the *tokens* of a step, which users have now; those of beams come with the end."""
        handles, now = self.handles, self.env.now
        first = (self.now - now) / self.speed
        for job, count in tokens:
            request = job.request
            handle = handles.get(request.id) or self._leaving.get(request.id)
            if handle is None or handle.request.beam_width:
                continue
            if (got := handle.count(job, count)) and request.id in handles:
                self._tell(handle, handle.listener.tokens, got, now, request.sequence)
        if tokens:
            self.lateness.note((self.now - now) / self.speed, len(tokens), self.wall(), first)

    def _end(self, handle: Handle) -> None:
        """The request of *handle* has ended, or was refused."""
        request, now = handle.request, self.env.now
        reason = self._reasons.pop(request.id, None)
        if request.id not in self.handles:
            return
        if isinstance(reason, Rejected):
            self._tell(handle, handle.listener.refused, reason.reason)
        else:
            for beam in range(request.beam_width if reason is None else 0):
                self._tell(handle, handle.listener.tokens, request.output, now, beam)
            self._tell(handle, handle.listener.finished, "error" if reason else _finish_reason(request), now)
        self.handles.pop(request.id, None)
        self._look_for_end()

    def _tell(self, handle: Handle, listen: Callable[..., None], *told: Any) -> None:
        """Call a listener with what it is *told*; if it fails, its request is aborted, and others go on."""
        try:
            listen(*told)
        except Exception:
            LOGGER.exception("the listener of request %d failed", handle.request.id)
            self.abort(handle)
            with suppress(Exception):  # its client need not wait for ever
                handle.listener.finished("error", self.env.now)

    def _note_reason(self, event: Rejected | Failed) -> None:
        if event.request_id in self.handles:
            self._reasons[event.request_id] = event

    def _look_for_end(self) -> None:
        if self.draining and not self.handles and self._ended is not None:
            self._ended.set()

    # The event loop.

    async def run(self) -> None:
        """Play until `drain` was asked for and the last request has ended."""
        self._ended = asyncio.Event()
        self._wake()
        self._look_for_end()
        await self._ended.wait()
        while self.advance() <= 0:  # aborts that are due
            await asyncio.sleep(0)
        if self._timer:
            self._timer.cancel()

    def drain(self) -> None:
        """Have `run` return once those in flight have ended; whoever asks for more is to be turned away."""
        self.draining = True
        self._look_for_end()

    def drop(self) -> None:
        """Abort all requests that have not ended."""
        for handle in [*self.handles.values()]:
            self.abort(handle)

    def _wake(self) -> None:
        """Look at once what is due."""
        if self._ended is not None:
            self._plan(0.0)

    def _plan(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        if seconds <= 0.0:
            self._timer = loop.call_soon(self._go_on)
        else:
            self._timer = loop.call_later(seconds, self._go_on) if seconds < inf else None

    def _go_on(self) -> None:
        self._timer = None
        self._plan(self.advance())


def _finish_reason(request: Request) -> str:
    """How the first sequence of *request* ends, as vLLM words it."""
    return "length" if request.max_tokens is None or request.output >= request.max_tokens else "stop"


def _stepping(fleet: Fleet) -> Fleet:
    """*fleet* with engines that take their steps when it is time, none ahead of the clock, and clients that neither
    wait for each other nor try again: real clients do that themselves."""
    scenario = fleet.scenario
    return evolve(fleet.stepping(), scenario=evolve(
        scenario, workload=evolve(scenario.workload, max_concurrency=None, retries=None)))


def warm_up(live: Live) -> None:
    """Play a request on a fleet like that of *live*, and price a prompt and a decode on each engine."""
    env = Horizon()
    env.process(build(live.fleet, env, LiveLog(), lambda: None).serve([Request(0, 0.0, 100, 5)]))
    env.run()
    for timer in [timer for engine in live.engines for timer in engine.timers]:
        for batch in (Batch.of((256, 0), samples=1), Batch.of((1, 256))):
            timer.step_cost(batch, ())
