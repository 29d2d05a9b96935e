"""Flows: bytes on their way over links that they share, as SimPy events.

Max-min fair rates: how flows share links at one moment.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Protocol

import simpy
from attrs import define, field, frozen

from ksim.network.links import Links


@frozen
class Demand:
    """The demand of a flow: links, each with its `weight`, and at most the rate `cap` in bytes/s.

    A flow with rate r takes weight x r of each link.  A flow of one message has weight 1 on all its links.
    """

    path: Sequence[int]
    cap: float = inf
    weights: Sequence[float] | None = None

    #: Its links with their weights.
    uses: Sequence[tuple[int, float]] = field(init=False, eq=False, repr=False)

    @uses.default
    def _weighted(self) -> list[tuple[int, float]]:
        return list(zip(self.path, self.weights or (1.0,) * len(self.path), strict=True))

    def alone(self, capacities: Sequence[float]) -> float:
        """The rate that it has where no other flow is."""
        return min([self.cap, *(capacities[link] / weight for link, weight in self.uses)])


def fair_rates(demands: Sequence[Demand], capacities: Sequence[float] | Mapping[int, float]) -> list[float]:
    """The max-min fair rates of flows that share links, by progressive filling.

    All rates rise together.  A flow stops where it reaches its cap, or where one of its links is full.  So each flow is
    at its cap, or has a full link on which none is faster.  A flow without links and cap has the rate inf.
    """
    uses = [demand.uses for demand in demands]
    room, weight, users = _links(uses, capacities)
    rates = [inf] * len(demands)
    # What stops rising at which level: links, and flows with a cap as -1 - flow.
    stops = [(room[link] / weight[link], link) for link in room]
    stops += [(demand.cap, -1 - flow) for flow, demand in enumerate(demands) if demand.cap < inf]
    heapify(stops)
    while stops:
        level, stop = stops[0]
        rising = [flow for flow in (users[stop] if stop >= 0 else (-1 - stop,)) if rates[flow] == inf]
        # The share of a link grows while flows stop elsewhere, so what the heap has is a lower bound.
        if stop >= 0 and rising and (now := room[stop] / weight[stop]) > level:
            heapreplace(stops, (now, stop))
            continue
        heappop(stops)
        for flow in rising:
            rates[flow] = level
            for link, part in uses[flow]:
                room[link] -= part * level
                weight[link] -= part
    return rates


def _links(uses: Sequence[Sequence[tuple[int, float]]], capacities: Sequence[float] | Mapping[int, float],
           ) -> tuple[dict[int, float], dict[int, float], dict[int, list[int]]]:
    """The bytes/s left of each link that flows use, the sum of their weights, and the flows."""
    room: dict[int, float] = {}
    weight: dict[int, float] = {}
    users: dict[int, list[int]] = {}
    for flow, of_flow in enumerate(uses):
        for link, part in of_flow:
            if link not in room:
                room[link], weight[link], users[link] = capacities[link], 0.0, []
            weight[link] += part
            users[link].append(flow)
    return room, weight, users


#: What is told of the use of links: the time, and by link the bytes/s that flows use from then on.
OnUse = Callable[[float, Mapping[int, float]], None]
#: A link is left out of account where all its flows together, each as fast as alone, use less than this of it.
_SLACK = 1 - 1e-9


@define(eq=False)
class Flow:
    """`size` bytes on their way over `path`, at most at `cap` bytes/s.

    `done` fires when the last byte has arrived.  Without other flows that takes `alone` seconds.
    `rate` is in bytes/s, and 0 for a flow that has just begun beside others.
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
    uses: Sequence[tuple[int, float]] = field(init=False, default=())

    def __attrs_post_init__(self) -> None:
        self.left, self.settled, self.uses = self.size, self.began, self.demand.uses

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


class Capacities(Protocol):
    """Links of which only the `capacities` are known, in bytes/s."""

    @property
    def capacities(self) -> Sequence[float]: ...


class Flows:
    """The flows on *links*.  They share them max-min fairly, again whenever a flow starts or ends.

    Rates are worked out for the flows that a change can concern: those that a chain of links joins to it, each link
    one that its flows could fill.  Where several flows start and end at one time, that is done once, by an event at
    that time; until then, those that share links have their rates from before.  `on_use` is told of all changes in the
    use of links.
    """

    def __init__(self, env: simpy.Environment, links: "Links | Capacities", on_use: OnUse | None = None) -> None:
        self._env = env
        self._capacities = links.capacities
        self._on_use = on_use
        #: The flows of each link that has any, and the bytes/s that they would use, were each alone.
        self._users: dict[int, dict[Flow, float]] = {}
        self._asked: dict[int, float] = {}
        self._used: dict[int, float] = {}
        #: Flows whose rates are to be worked out at this time, and links whose use may have changed.
        self._stirred: dict[Flow, None] = {}
        self._touched: dict[int, None] = {}
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
        flow = Flow(demand, size, now, self._env.event(), size / fastest, fastest)
        if flow.alone == 0:
            self._finish(flow)
        elif self._add(flow):
            self._stir([flow])
        else:
            self._go_on(flow, fastest)
            self._settled()
        return flow

    def idle(self, path: Sequence[int]) -> bool:
        """Whether nothing is on its way over any link of *path*."""
        return self._users.keys().isdisjoint(path)

    def cancel(self, flow: Flow) -> None:
        """Take *flow* off its links now; `done` does not fire, and `left` bytes have not arrived."""
        if flow.ended is None:
            flow.go_on(self._env.now, flow.rate or flow.fastest)
            flow.ended = self._env.now
            self._remove([flow])

    def _add(self, flow: Flow) -> bool:
        """Put *flow* on its links, and say whether it meets others there."""
        meets = False
        for link, weight in flow.uses:
            users = self._users.setdefault(link, {})
            users[flow] = weight
            self._asked[link] = self._asked.get(link, 0.0) + weight * flow.fastest
            meets = meets or (len(users) > 1 and self._is_tight(link))
        return meets

    def _is_tight(self, link: int) -> bool:
        """Whether the flows of *link* could fill it."""
        return self._asked[link] > _SLACK * self._capacities[link]

    def _remove(self, ended: Sequence[Flow]) -> None:
        """Take flows off their links, and let others have what they leave."""
        others: dict[Flow, None] = {}
        for flow in ended:
            flow.rate, flow.ends = 0.0, inf
            for link, weight in flow.uses:
                users, tight = self._users[link], self._is_tight(link)
                del users[flow]
                self._asked[link] -= weight * flow.fastest
                self._touched[link] = None
                if tight:
                    others.update(dict.fromkeys(users))
                if not users:
                    del self._users[link], self._asked[link]
        self._stir(others)

    def _stir(self, flows: Iterable[Flow]) -> None:
        """Schedule the rates of *flows*, and of those that they meet, to be worked out at this time."""
        if not self._stirred and (stirred := dict.fromkeys(flows)):
            self._stirred = stirred
            self._env.timeout(0).callbacks.append(self._share)
        else:
            self._stirred.update(dict.fromkeys(flows))
            self._settled()

    def _joined(self) -> list[Flow]:
        """The flows that are stirred, and all others whose rates may depend on them."""
        joined, passed = {flow: None for flow in self._stirred if flow.ended is None}, set[int]()
        stack = list(joined)
        while stack:
            for link, _ in stack.pop().uses:
                if link not in passed and self._is_tight(link):
                    passed.add(link)
                    fresh = [user for user in self._users[link] if user not in joined]
                    stack += fresh
                    joined.update(dict.fromkeys(fresh))
        return list(joined)

    def _share(self, _: simpy.Event) -> None:
        """Work out the rates of all flows that are stirred."""
        flows = self._joined()
        self._stirred.clear()
        for flow, rate in zip(flows, fair_rates([flow.demand for flow in flows], self._capacities), strict=True):
            if rate != flow.rate:
                self._go_on(flow, rate)
        self._settled()

    def _go_on(self, flow: Flow, rate: float) -> None:
        flow.go_on(self._env.now, rate)
        self._entries += 1
        heappush(self._due, (flow.ends, self._entries, flow))
        if self._on_use is not None:
            self._touched.update(dict.fromkeys(flow.demand.path))

    def _settled(self) -> None:
        """Say how links are used, and wait for the next end; not before the rates of this time are known."""
        if self._stirred:
            return
        if self._on_use is not None and self._touched:
            before = self._used
            changed = {link: used for link in self._touched if (used := self._use(link)) != before.get(link, 0.0)}
            before.update(changed)
            if changed:
                self._on_use(self._env.now, changed)
        self._touched.clear()
        self._arm()

    def _use(self, link: int) -> float:
        """The bytes/s that flows use of *link*."""
        users = self._users.get(link)
        return sum([weight * flow.rate for flow, weight in users.items()], 0.0) if users else 0.0

    def _arm(self) -> None:
        """See to it that a timer fires when the next flow ends.  One that is armed already fires, and may be early."""
        while self._due and self._due[0][0] != self._due[0][2].ends:
            heappop(self._due)
        if self._due and not (self._armed and self._armed[-1] <= self._due[0][0]):
            moment = self._due[0][0]
            self._armed.append(moment)
            self._env.timeout(max(moment - self._env.now, 0.0)).callbacks.append(self._wake)

    def _wake(self, _: simpy.Event) -> None:
        """End the flows that are due."""
        moment = max(self._armed.pop(), self._env.now)
        ended = []
        while self._due and self._due[0][0] <= moment:
            ends, _entry, flow = heappop(self._due)
            if flow.ends == ends:
                flow.ends = inf
                ended.append(flow)
        for flow in ended:
            self._finish(flow)
        self._remove(ended)

    def _finish(self, flow: Flow) -> None:
        flow.left, flow.ended = 0.0, self._env.now
        flow.done.succeed(flow)
