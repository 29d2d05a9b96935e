"""When an engine's turns begin and end, by arithmetic: how long its loop, worker, GPUs and front end wait.

In a `Horizon`, which is a SimPy environment, a process may go ahead of the clock, up to the next event that may concern
it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from math import inf

import simpy
from attrs import define, evolve, field

from ksim.flow.request import Request
from ksim.specs.host import Client, Host


@define(eq=False)
class LoopTimes:
    """The next turn begins `now`, in seconds from the start of the run.

    The worker, the GPUs and the front end have work until `worker`, `gpus` and `frontend`; the front end's process is
    free from `streamed` on.  Of the batches in flight it is known when they end, and how many tokens they sample.
    """

    host: Host
    workers: int
    now: float = 0.0
    worker: float = 0.0
    gpus: float = 0.0
    frontend: float = 0.0
    streamed: float = 0.0
    _in_flight: deque[tuple[float, int]] = field(factory=deque)

    def prepare(self, sequences: int, touched: int, launch_seconds: float) -> tuple[float, float, float]:
        """Make a batch of so many *sequences* that *touched* so many KV blocks, and launch it.

        Return when its inputs are prepared, when its last kernel is launched, and when the GPUs can begin.
        """
        return self.ready(self.host.core.making(sequences, touched, self.workers),
                          self.host.worker.preparing(sequences), launch_seconds)

    def ready(self, making: float, preparing: float, launch_seconds: float) -> tuple[float, float, float]:
        """The same, given the seconds that it takes to make the batch and to prepare its inputs."""
        pace = self.host.pace.at(self.now)
        ready = self.now + pace * making
        prepared = (ready if ready > self.worker else self.worker) + pace * preparing
        launched = self.worker = prepared + pace * launch_seconds
        self.now = ready if self.workers > 1 else launched
        return prepared, launched, prepared if prepared > self.gpus else self.gpus

    def compute(self, launched: float, start: float, seconds: float, samples: int) -> float:
        """Have the GPUs compute a batch for *seconds* from *start* on; return when they end.

        They do not end before its last kernel is *launched*.
        """
        end = self.gpus = max(start + seconds, launched)
        self._in_flight.append((end, samples))
        return end

    @property
    def earliest_end(self) -> float:
        """When, at the earliest, a batch ends that has not been taken in; the GPUs have work until then."""
        return self._in_flight[0][0] if self._in_flight else max(self.now, self.gpus)

    @property
    def in_flight(self) -> int:
        """How many batches have not been taken in."""
        return len(self._in_flight)

    def copy(self) -> "LoopTimes":
        """The same times, which go their own way."""
        return evolve(self, in_flight=self._in_flight.copy())

    @property
    def oldest_end(self) -> float:
        """When the oldest batch in flight ends."""
        return self._in_flight[0][0]

    def finish(self) -> tuple[float, float]:
        """Wait for the oldest batch; return when its tokens are taken in, and when they reach the users."""
        end, samples = self._in_flight.popleft()
        now, host, client = self.now, self.host, self.host.client
        come = end if end > now else now
        taken = self.now = come + host.pace.at(come) * host.core.taking(samples)
        self.streamed = (taken if taken > self.streamed else self.streamed) + client.stream * samples
        come = taken + client.deliver + client.deliver_sequence * samples
        self.frontend = max(self.frontend, come, self.streamed)
        return taken, self.frontend

    def repeat(self, sequences: int, launches: Iterable[float], lasting: Callable[[int, float], float], until: float
               ) -> tuple[list[tuple[float, float, float, float]], list[tuple[float, float]]]:
        """Take turns that begin by *until*, each with a batch of so many *sequences* that decode.

        *launches* are the seconds that it takes to launch each, and *lasting* says how long each takes if it starts
        then.  Return when each is scheduled and prepared, starts and ends, and what `finish` returns.
        """
        making = self.host.core.making(sequences, 0, self.workers)
        preparing = self.host.worker.preparing(sequences)
        launched, finished = list[tuple[float, float, float, float]](), list[tuple[float, float]]()
        for turn, launching in enumerate(launches):
            scheduled = self.now
            if scheduled > until:
                break
            prepared, sent, start = self.ready(making, preparing, launching)
            end = self.compute(sent, start, lasting(turn, start), sequences)
            launched.append((scheduled, prepared, start, end))
            finished.append(self.finish())
        return launched, finished

    def shift(self, late: float) -> None:
        """Have all batches in flight end so many seconds later."""
        self.gpus += late
        self._in_flight = deque((end + late, samples) for end, samples in self._in_flight)

    def wake(self, news: float) -> None:
        """Begin the next turn, as a request has come at *news*."""
        woken = max(self.now, news)
        self.now = woken + self.host.pace.at(woken) * self.host.core.wake


@define(eq=False)
class Frontend:
    """A process that accepts requests one after the other; tokens leave in the order in which they come."""

    env: simpy.Environment
    client: Client
    _free: float = field(default=0.0, init=False)
    delivered: float = field(default=0.0, init=False)
    streamed: float = field(default=0.0, init=False)

    def reach(self, request: Request, tokenized: bool = False) -> float:
        """Accept *request*; return when it will have come to the engine.

        If it is *tokenized*, its prompt comes as tokens from the engine that prefilled it.
        """
        client = self.client
        self._free = max(self._free, self.env.now) + client.accept
        return self._free + client.travel + (0.0 if tokenized else client.travel_token * request.prompt)

    def forward(self, request: Request, receive: Callable[[], None], tokenized: bool = False) -> float:
        """Call *receive* when *request* has come to the engine; return when that is."""
        moment = self.reach(request, tokenized)
        self._call(receive, moment)
        return moment

    def deliver(self, sequences: int, receive: Callable[[], None]) -> None:
        """Call *receive* when the users have what *sequences* of a step sampled."""
        self.delivered, self.streamed = self.delivery(sequences), self._streamed(sequences)
        self._call(receive, self.delivered)

    def delivery(self, sequences: int) -> float:
        """When the users will have what *sequences* of a step sampled that is taken in now."""
        come = self.env.now + self.client.deliver + self.client.deliver_sequence * sequences
        return max(self.delivered, come, self._streamed(sequences))

    def _streamed(self, sequences: int) -> float:
        return max(self.streamed, self.env.now) + self.client.stream * sequences

    def _call(self, receive: Callable[[], None], moment: float) -> None:
        if moment <= self.env.now:
            receive()
        else:
            self.env.timeout(moment - self.env.now).callbacks.append(lambda _: receive())


class Horizon(simpy.Environment):
    """SimPy's environment, and processes that wait until no event is left before some moment.

    Such a process holds nobody up: it waits for the next event to be no earlier.  So two of them never wait for each
    other, as they would if each had an event of its own at the moment that the other waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[float, int, simpy.Event]] = []
        self._tickets = count()
        #: Whether processes that wait may cause events, once they go on, that concern others.
        self.coupled = False
        #: Before when nothing that an engine does concerns others, by the numbers of those that say so; inf while one
        #: goes on, or sleeps until an event wakes it.
        self.promises: dict[int, float] = {}
        #: When the next request comes from a user; -inf where that depends on what engines do.
        self.next_request = -inf

    @property
    def news(self) -> float:
        """When the next event may happen that a process going ahead does not know of; inf if none will."""
        if not self.coupled:
            return self.peek()
        return min(self.peek(), *self.promises.values()) if self.promises else self.due

    @property
    def due(self) -> float:
        """When the next event happens, if none is scheduled before; inf without any."""
        return min(self.peek(), self._first_waiting)

    @property
    def _first_waiting(self) -> float:
        """Until when the first of the processes waits that go ahead; inf without any.  Some may go on already."""
        waiting = self._waiting
        while waiting and waiting[0][2].triggered:
            heappop(waiting)
        return waiting[0][0] if waiting else inf

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        """Call *callback* at this very *moment*, which is yet to come: a timeout would round it."""
        event = self.event()
        event._ok, event._value = True, None
        event.callbacks = [lambda _: callback()]
        heappush(self._queue, (moment, simpy.events.NORMAL, next(self._eid), event))

    def quiet_before(self, moment: float) -> simpy.Event:
        """An event that fires when no other event is left before *moment*, unless somebody has it fire sooner."""
        event = self.event()
        heappush(self._waiting, (moment, next(self._tickets), event))
        return event

    def step(self) -> None:
        if self._waiting and self.peek() >= self._first_waiting < inf:
            heappop(self._waiting)[-1].succeed()
        super().step()
