"""The gateway: what happens to a request between its client and the router."""

from collections import deque
from collections.abc import Callable, Sequence
from math import floor, inf
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ksim.cluster.flow_controls import FlowControl
from ksim.cluster.routers import EngineView, Refusal
from ksim.cluster.signals import signals_of, together
from ksim.cluster.signals.engine_views import EngineViews
from ksim.engine.loop_times import Horizon
from ksim.flow.events import GONE, GONE_AFTER_REFUSAL, TOO_MANY, Arrived, Held, Refused, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.rng import stream
from ksim.specs.settings import SignalSettings

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Gateway", "RouterAndControl"]

#: How often llm-d tries to send one of the requests that wait (flowcontrol/controller/internal/processor.go).
CYCLE = 1e-3
#: Rounding of SimPy's clock.
EARLY = 1e-9


@frozen
class RouterAndControl:
    """A router, a flow control, and maybe a `scaler`, which share one sight of the engines.

    All are called at answers, and each may read the signals that the others have named.
    """

    router: Any
    control: Any
    key: str
    scaler: Any = None

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of any of them, in their usual order."""
        scaled_by = () if self.scaler is None else signals_of(self.scaler, "autoscaler")
        return tuple(dict.fromkeys([*self.chosen_by, *scaled_by]))

    @property
    def chosen_by(self) -> tuple[str, ...]:
        """The signals by which requests are let through, and engines chosen for them."""
        return *signals_of(self.router, self.key), *signals_of(self.control, "flow_control")

    @property
    def scores(self) -> Any:
        """The router's scores, if it has any."""
        return getattr(self.router, "scores", None)

    @property
    def on_first_token(self) -> Callable[..., object] | None:
        return together((self.router, self.control, self.scaler), "on_first_token")

    @property
    def on_end(self) -> Callable[..., object] | None:
        return together((self.router, self.control, self.scaler), "on_end")


@define(eq=False)
class Attempt:
    """A client's attempt to have *request* served: the one after so many `retries`; in the queue `since` then."""

    request: Request
    done: Callable[[], object]
    timely: bool
    retries: int = 0
    since: float = -inf


@define(eq=False)
class Gateway:
    """Asks `control` which requests wait, and in what order they go; where it refuses one, the client may try again.

    One request goes each `CYCLE`, and when another one comes, as in llm-d; `retries` says when clients come again.
    While no engine is there, as a `scaler` has none ready, all wait.
    """

    env: Horizon
    log: Log
    control: FlowControl
    retries: Any = None
    seed: int = 0
    scaler: Any = None
    retried: int = field(default=0, init=False)  # of the attempt that goes through
    _forward: Callable[[Request, Callable[[], object], bool], int] = field(init=False)
    _sight: EngineViews = field(init=False)
    _signals: SignalSettings = field(init=False)
    _flows: dict[str, deque[Attempt]] = field(factory=dict, init=False)
    _held: int = field(default=0, init=False)
    _away: set[int] = field(factory=set, init=False)  # whose clients will try again
    _next: float = field(default=inf, init=False)  # cycle
    _random: "np.random.Generator | None" = field(default=None, init=False)

    def sharing(self, router: Any, key: str) -> RouterAndControl:
        """*router*, which is the scenario's *key*, and `control`, as one that looks at engines."""
        return RouterAndControl(router, self.control, key, self.scaler)

    @property
    def held(self) -> int:
        """How many requests wait here."""
        return self._held

    @property
    def busy(self) -> bool:
        """Whether requests wait here, or with clients that will try again."""
        return bool(self._held or self._away)

    def wake(self) -> None:
        """Go on: other engines are there than before."""
        self._go_on(self._send_one())

    def open(self, forward: Callable[[Request, Callable[[], object], bool], int], sight: EngineViews,
             signals: SignalSettings) -> None:
        """Begin to let requests through to *forward*, which sends one to an engine and returns the engine's number.

        It may raise Refusal.  `control` sees engines through *sight*, by the *signals*.
        """
        self._forward, self._sight, self._signals = forward, sight, signals

    def take(self, request: Request, done: Callable[[], object], timely: bool) -> None:
        """Take *request*, which a client sends for the first time; *done* is called at its end, or its last refusal."""
        self.log.add(Arrived(self.env.now, request))
        self._try(Attempt(request, done, timely))

    def resend(self, request: Request, done: Callable[[], object], retries: int) -> None:
        """Queue *request*, which an engine had that is gone, before others of its flow; its client sent it after so
        many *retries*."""
        self._queue(Attempt(request, done, timely=True, retries=retries), deque.appendleft)

    def may_come_again(self, retries: int) -> bool:
        """Whether a client tries again after so many *retries*."""
        return self.retries is not None and retries < self.retries.max_retries

    def come_again(self, attempt: Attempt, reason: str, status: int = TOO_MANY) -> None:
        """Have the client of an *attempt* that has ended so, which may, send its request again after a while."""
        self.log.add(Refused(self.env.now, attempt.request.id, reason, status=status))
        self._random = self._random or stream(self.seed, "workload.retries")
        again = Attempt(attempt.request, attempt.done, attempt.timely, attempt.retries + 1)
        delay = self.retries.delay(attempt.retries, self._random)
        self._away.add(attempt.request.id)
        self.env.timeout(delay).callbacks.append(lambda _: self._try_again(again))

    def _try(self, attempt: Attempt) -> None:
        request, now = attempt.request, self.env.now
        if self.scaler is not None:
            self.scaler.arrived(request)
        if reason := self.control.refusal(request, self._look(), self._held, now):
            self._refuse(attempt, reason)
            return
        self._queue(attempt, deque.append)

    def _queue(self, attempt: Attempt, place: Callable[[deque[Attempt], Attempt], None]) -> None:
        """Have *attempt* wait at that *place* of its flow, and send whoever may go."""
        attempt.since = self.env.now
        place(self._flows.setdefault(self.control.flow(attempt.request), deque()), attempt)
        self._held += 1
        self._go_on(self._send_one())

    def _send_one(self) -> bool:
        """Send one of those that wait to an engine, if any may go; return whether that is so."""
        if not self._held or not self._sight.complete or not self.control.ready(self._look(), self.env.now):
            return False
        attempt = self._leave(self.control.pick({flow: queue[0].request for flow, queue in self._flows.items()}))
        try:
            self.retried = attempt.retries
            number = self._forward(attempt.request, attempt.done, attempt.timely)
        except Refusal as refusal:
            self._refuse(attempt, str(refusal))
        else:
            self.control.sent(attempt.request, number, self.env.now)
        return True

    def _leave(self, flow: str) -> Attempt:
        """Take the first attempt of *flow* out of the queue."""
        queue = self._flows[flow]
        attempt = queue.popleft()
        if not queue:
            del self._flows[flow]
        self._held -= 1
        if self.env.now > attempt.since:
            self.log.add(Held(self.env.now, attempt.request.id, attempt.since))
        return attempt

    def abort(self, request: int) -> bool:
        """Drop *request*, by its number, as its client has gone; return whether it was waiting."""
        if request in self._away:
            self._away.remove(request)
            self.log.add(Rejected(self.env.now, request, GONE_AFTER_REFUSAL))
            return True
        for flow, queue in self._flows.items():
            for index, attempt in enumerate(queue):
                if attempt.request.id == request:
                    queue.rotate(-index)
                    self._leave(flow)
                    if flow in self._flows:
                        queue.rotate(index)
                    self.log.add(Rejected(self.env.now, request, GONE))
                    return True
        return False

    def _go_on(self, sent: bool) -> None:
        """Come back when another request may go after this one was or was not *sent*, or has waited too long."""
        if not self._held:
            return
        now, ttl = self.env.now, self.control.default_request_ttl
        oldest = min(queue[0].since for queue in self._flows.values())
        later = now + CYCLE if sent else max(now + CYCLE, self._next_scrape())
        moment = max(min(later if self._sight.complete else inf, oldest + ttl), now)
        if moment < self._next:
            self._next = moment
            self.env.timeout(moment - now).callbacks.append(lambda _: self._cycle(moment))

    def _look(self) -> Sequence[EngineView]:
        self._sight.refresh(self.env.now)
        return self._sight.views

    def _next_scrape(self) -> float:
        """The next time at which metrics may change: now where they are not scraped."""
        now, interval, delay = self.env.now, self._signals.scrape_interval, self._signals.delay
        return (floor((now - delay) / interval + 1e-6) + 1) * interval + delay if interval else now

    def _cycle(self, moment: float) -> None:
        if moment != self._next:
            return  # another came first, and has seen to what is next
        self._next = inf
        self._expire()
        self._go_on(self._send_one())

    def _expire(self) -> None:
        """Refuse those that have waited too long."""
        ttl, now = self.control.default_request_ttl, self.env.now
        for flow in [*self._flows]:
            while flow in self._flows and self._flows[flow][0].since + ttl <= now + EARLY:
                self._refuse(self._leave(flow), f"it waited at the gateway for {ttl:g} s")

    def _refuse(self, attempt: Attempt, reason: str) -> None:
        """Answer with status 429; the client tries again, or gives up."""
        if self.may_come_again(attempt.retries):
            self.come_again(attempt, reason)
            return
        now, request = self.env.now, attempt.request
        self.log.add(Refused(now, request.id, reason, last=True))
        self.log.add(Rejected(now, request.id, reason))
        attempt.done()

    def _try_again(self, attempt: Attempt) -> None:
        if attempt.request.id in self._away:  # its client has not gone
            self._away.remove(attempt.request.id)
            self._try(attempt)
