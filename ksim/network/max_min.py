"""Max-min fair rates: how flows share links at one moment."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf

from attrs import field, frozen


@frozen
class Demand:
    """What a flow asks for: links, each with its `weight`, and at most the rate `cap` in bytes/s.

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
