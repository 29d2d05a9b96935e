"""Meetings of ranks over links that are slower than others, or that KV transfers share."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import simpy
from attrs import define, field

from ksim.compute.graph import Collective
from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.rank_processes import Meeting, Process, Rank
from ksim.network.exchange import Exchange
from ksim.network.network import InterNodeTraffic, Network
from ksim.network.routes import Hop

__all__ = ["UnlikeLinks"]


class LateMeeting(Meeting):
    """A meeting that ends `late` seconds later than over links that are alike."""

    def _begin(self) -> None:
        self._fire(self.latest + self.seconds + self.late)


class SharedMeeting(Meeting):
    """A meeting whose collective is played once all are there: `play` makes the event of its end.

    It is not where nobody `else_there` is on its links then: a transfer that begins during it, which takes a hundred
    times as long, goes its way.
    """

    play: Callable[[], simpy.Event]
    else_there: Callable[[], bool]

    def _begin(self) -> None:
        self.env.process(self._played())

    def _played(self) -> Process:
        env = self.env
        if self.latest > env.now:
            yield env.timeout(self.latest - env.now)
        if self.else_there():
            began = env.now
            yield self.play()
            late = env.now - began - self.seconds
            self.late = late if late > ROUNDING * self.seconds else 0.0
        self._fire(self.latest + self.seconds + self.late)


#: What rounding alone may make of a collective's seconds.
ROUNDING = 1e-6
#: A collective of more hops is one flow over all of its links, as slow as the fullest of them: hop by hop, a ring of 16
#: takes 500 times the CPU time.
MOST_HOPS = 64


@define(eq=False)
class UnlikeLinks:
    """Collectives of the GPUs in `groups`, by engine, where some may have `narrow` links, or `shared` ones.

    GPUs have the numbers of their system.  Over slow links, hops take longer, and all wait for the slowest chain of
    them.  Over shared links, hops are flows beside those of KV.
    """

    env: simpy.Environment
    network: Network
    groups: Mapping[int, Mapping[str, Sequence[int]]]
    narrow: Mapping[int, Rank]
    shared: CollectiveFlows | None = None
    _known: dict[tuple[Any, ...], float] = field(factory=dict, init=False)

    def __call__(self, collective: Collective, member: int, ranks: int, seconds: float) -> Meeting | None:
        gpus = tuple(self.groups[member][collective.group])
        shares = self._shares(gpus)
        shared = self.shared
        if shared is not None and (traffic := shared.collective_traffic.of(collective, gpus)):
            meeting = SharedMeeting(self.env, ranks, seconds)
            meeting.late = self._late(collective, gpus, shares)
            meeting.play = partial(self._play, shared, collective, gpus, traffic)
            meeting.else_there = lambda: not shared.flows.idle(traffic.path)
            return meeting
        if not shares:
            return None
        late = LateMeeting(self.env, ranks, seconds)
        late.late = self._late(collective, gpus, shares)
        return late

    def _shares(self, gpus: Sequence[int]) -> dict[int, float]:
        """The GPUs whose links are slow now, and what they have of the others' bandwidth."""
        shares = {gpu: rank.link_at(self.env.now) for gpu, rank in self.narrow.items() if gpu in gpus}
        return {gpu: share for gpu, share in shares.items() if share != 1.0}

    def _late(self, collective: Collective, gpus: tuple[int, ...], shares: Mapping[int, float]) -> float:
        """By how many seconds *collective* takes longer over links that are slow."""
        if not shares:
            return 0.0
        key = (collective, gpus, *shares.items())
        if key not in self._known:
            route = self.network.route(collective, gpus)
            late = route.slowed(shares).seconds(collective.bytes) - route.seconds(collective.bytes)
            self._known[key] = late * route.erring(self.network.deviation)
        return self._known[key]

    def _play(self, shared: CollectiveFlows, collective: Collective, gpus: tuple[int, ...],
              traffic: InterNodeTraffic) -> simpy.Event:
        """Have *gpus* exchange what they have, hop by hop; the event fires when all are through."""
        route, shares, size = self.network.route(collective, gpus), self._shares(gpus), collective.bytes
        if sum(map(len, route.rounds)) > MOST_HOPS:
            seconds = traffic.seconds + self._late(collective, gpus, shares)
            return shared.flows.start(traffic.size, traffic.path, traffic.size / seconds, traffic.weights).done

        def send(hop: Hop) -> simpy.Event:
            """Between nodes, a flow that is as fast as the hop where it is alone."""
            over = shared.collective_traffic.hop(hop, gpus)
            if over is None:
                return self.env.timeout(size * hop.per_byte)
            return shared.flows.start(size * hop.passes, over[0], hop.passes / hop.per_byte, over[1]).done

        return Exchange(self.env, route.slowed(shares), size, send).play(gpus)
