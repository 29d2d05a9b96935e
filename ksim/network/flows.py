"""Flows: bytes on their way over links that they share, as SimPy events."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf

import simpy
from attrs import define, field

from ksim.network.links import Links
from ksim.network.sharing import Demand, fair_rates

#: What is told of a link's use: the time, the link, and the bytes/s that flows use from then on.
OnUse = Callable[[float, int, float], None]
#: A link is left out of account where all its flows together, each as fast as alone, use less than this of it.
_SLACK = 1 - 1e-9


@define(eq=False)
class Flow:
    """`size` bytes on their way over `path`, at most at `cap` bytes/s.

    `done` fires when the last byte has arrived.  Without other flows that takes `alone` seconds.
    """

    demand: Demand
    size: float
    began: float
    done: simpy.Event
    alone: float
    #: Bytes/s without other flows.
    fastest: float
    rate: float = 0.0
    ended: float | None = None
    #: Bytes that were left at `settled`, and when they will have arrived at the rate since then.
    left: float = field(init=False, default=0.0)
    settled: float = field(init=False, default=0.0)
    ends: float = field(init=False, default=inf)
    uses: list[tuple[int, float]] = field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.left, self.settled, self.uses = self.size, self.began, self.demand.uses()

    @property
    def path(self) -> Sequence[int]:
        return self.demand.path

    @property
    def cap(self) -> float:
        return self.demand.cap

    def go_on(self, now: float, rate: float) -> None:
        """Change the rate from *now* on."""
        self.left = max(self.left - self.rate * (now - self.settled), 0.0)
        self.settled, self.rate = now, rate
        self.ends = now + self.left / rate


class Flows:
    """The flows on *links*.  They share them max-min fairly, again whenever a flow starts or ends.

    Rates are worked out for the flows that a change can concern: those that a chain of links joins to it, each link
    one that its flows could fill.  `on_use` is told of each change in the use of a link.
    """

    def __init__(self, env: simpy.Environment, links: Links, on_use: OnUse | None = None) -> None:
        self._env = env
        self._capacities = links.capacities
        self._on_use = on_use
        #: The flows of each link that has any, and the bytes/s that they would use, were each alone.
        self._users: dict[int, dict[Flow, float]] = {}
        self._asked: dict[int, float] = {}
        self._used: dict[int, float] = {}
        #: When flows end.  An entry is void where the flow ends at another time by now.
        self._due: list[tuple[float, int, Flow]] = []
        self._entries = 0
        #: Moments at which timers fire, the next one last.
        self._armed: list[float] = []

    def start(self, size: float, path: Sequence[int], cap: float = inf,
              weights: Sequence[float] | None = None) -> Flow:
        """Send *size* bytes over *path* from now on, at most *cap* bytes/s.

        With *weights*, one for each link, a link carries that many times the bytes.  Raises ValueError for a size or a
        cap that no flow has.
        """
        if not 0 <= size < inf or not cap > 0:
            raise ValueError(f"no flow has {size} bytes, at most {cap} bytes/s")
        demand, now = Demand(path, cap, weights), self._env.now
        fastest = demand.alone(self._capacities)
        flow = Flow(demand, size, now, self._env.event(), size / fastest, fastest=fastest)
        if flow.alone == 0:
            self._finish(flow)
        else:
            self._add(flow)
            self._share([*self._joined([flow])], ())
        return flow

    def cancel(self, flow: Flow) -> None:
        """Take *flow* off its links now; `done` does not fire, and `left` bytes have not arrived."""
        if flow.ended is None:
            flow.go_on(self._env.now, flow.rate)
            flow.ended = self._env.now
            self._remove([flow])

    def _add(self, flow: Flow) -> None:
        for link, weight in flow.uses:
            self._users.setdefault(link, {})[flow] = weight
            self._asked[link] = self._asked.get(link, 0.0) + weight * flow.fastest

    def _remove(self, ended: Sequence[Flow]) -> None:
        """Take flows off their links, and let others have what they leave."""
        others = self._joined(ended)
        for flow in ended:
            others.pop(flow, None)
            flow.rate, flow.ends = 0.0, inf
            for link, weight in flow.uses:
                users = self._users[link]
                del users[flow]
                self._asked[link] -= weight * flow.fastest
                if not users:
                    del self._users[link], self._asked[link]
        self._share([*others], ended)

    def _joined(self, flows: Iterable[Flow]) -> dict[Flow, None]:
        """*flows*, and all others whose rates may depend on them."""
        joined, passed = dict.fromkeys(flows), set[int]()
        stack = list(joined)
        while stack:
            for link, _ in stack.pop().uses:
                if link not in passed and self._asked[link] > _SLACK * self._capacities[link]:
                    passed.add(link)
                    fresh = [user for user in self._users[link] if user not in joined]
                    stack += fresh
                    joined.update(dict.fromkeys(fresh))
        return joined

    def _share(self, flows: Sequence[Flow], ended: Sequence[Flow]) -> None:
        """Work out the rates of *flows*; some have just *ended*."""
        now = self._env.now
        rates = ([flow.fastest for flow in flows] if len(flows) == 1 else
                 fair_rates([flow.demand for flow in flows], self._capacities))
        changed = list(ended)
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate:
                flow.go_on(now, rate)
                changed.append(flow)
                self._entries += 1
                heappush(self._due, (flow.ends, self._entries, flow))
        if self._on_use is not None:
            self._tell(changed)
        self._arm()

    def _tell(self, changed: Iterable[Flow]) -> None:
        """Say what flows use of the links of those that have *changed*."""
        assert self._on_use is not None
        for link in dict.fromkeys(link for flow in changed for link, _ in flow.uses):
            used = sum((weight * flow.rate for flow, weight in self._users.get(link, {}).items()), 0.0)
            if used != self._used.get(link, 0.0):
                self._used[link] = used
                self._on_use(self._env.now, link, used)

    def _arm(self) -> None:
        """See to it that a timer fires when the next flow ends.  One that is armed already fires, and may be early."""
        while self._due and self._due[0][0] != self._due[0][2].ends:
            heappop(self._due)
        if self._due and not (self._armed and self._armed[-1] <= self._due[0][0]):
            moment = self._due[0][0]
            self._armed.append(moment)
            timer = self._env.timeout(max(moment - self._env.now, 0.0))
            timer.callbacks.append(self._wake)

    def _wake(self, timer: simpy.Event) -> None:
        """End the flows that are due."""
        moment = max(self._armed.pop(), self._env.now)
        ended = []
        while self._due and self._due[0][0] <= moment:
            ends, _, flow = heappop(self._due)
            if flow.ends == ends:
                flow.ends = inf
                ended.append(flow)
        if ended:
            self._remove(ended)
            for flow in ended:
                self._finish(flow)
        else:
            self._arm()

    def _finish(self, flow: Flow) -> None:
        flow.left, flow.ended = 0.0, self._env.now
        flow.done.succeed(flow)
