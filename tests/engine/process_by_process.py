"""What `RankStage` is held against: ranks that wait for every kernel, meet, and send each piece by its own event."""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, StepCost
from ksim.network.routes import Hop, Route

Process = Generator[simpy.Event, Any, None]


@define(eq=False)
class Barrier:
    """A barrier for `size` processes, good for any number of meetings."""

    env: simpy.Environment
    size: int
    present: int = 0
    done: simpy.Event = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.done = self.env.event()

    def join(self) -> simpy.Event:
        """Come to the barrier; the event fires when all have come."""
        done, self.present = self.done, self.present + 1
        if self.present == self.size:
            self.present, self.done = 0, self.env.event()
            done.succeed()
        return done


@define(eq=False)
class Exchange:
    """One collective in progress: what each rank has yet to send and to receive, round by round."""

    env: simpy.Environment
    route: Route
    size: float
    missing: Counter[tuple[int, int]] = field(init=False)
    through: dict[tuple[int, int], simpy.Event] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.missing = Counter((rank, number) for number, hops in enumerate(self.route.rounds)
                               for hop in hops for rank in (hop.source, hop.target))
        self.through = {key: self.env.event() for key in self.missing}

    def take_part(self, rank: int) -> Process:
        """Send *rank*'s pieces to its peers, each round as soon as it is through with the one before."""
        yield self.env.timeout(self.route.start)
        for number, hops in enumerate(self.route.rounds):
            for hop in hops:
                if hop.source == rank:
                    self._send(hop, number)
            if (rank, number) in self.through:
                yield self.through[rank, number]

    def _send(self, hop: Hop, number: int) -> None:
        def deliver(_: simpy.Event) -> None:
            for key in ((hop.source, number), (hop.target, number)):
                self.missing[key] -= 1
                if not self.missing[key]:
                    self.through[key].succeed()

        self.env.timeout(hop.seconds(self.size)).callbacks.append(deliver)


@define(eq=False)
class Crowd:
    """As the ranks of a `RankStage`, each with a timeline and a pace of its own, and the same collectives in it."""

    env: simpy.Environment
    network: Any
    ranks: Sequence[int]

    def play(self, step_costs: Sequence[StepCost], paces: Sequence[ClockScaling]) -> simpy.Event:
        barrier = Barrier(self.env, len(self.ranks))
        exchanges: dict[int, Exchange] = {}
        return self.env.all_of([self.env.process(self._rank(rank, timeline, pace, barrier, exchanges))
                                for rank, timeline, pace in zip(self.ranks, step_costs, paces, strict=True)])

    def _rank(self, rank: int, timeline: StepCost, pace: ClockScaling, barrier: Barrier,
              exchanges: dict[int, Exchange]) -> Process:
        hidden: list[simpy.Event] = []
        for position, span in enumerate(timeline):
            played = (self._meet(rank, position, span, barrier, exchanges) if span.group else
                      self._compute(span, pace.time if span.is_compute_bound and not span.hidden else 1.0))
            if span.hidden:
                hidden.append(self.env.process(played))
                continue
            yield from played
            while hidden:
                yield hidden.pop()

    def _compute(self, span: KernelCost, pace: float) -> Process:
        yield self.env.timeout(span.lasts * pace)

    def _meet(self, rank: int, position: int, span: KernelCost, barrier: Barrier,
              exchanges: dict[int, Exchange]) -> Process:
        yield barrier.join()
        exchange = exchanges.get(position)
        if exchange is None:
            exchange = exchanges[position] = self._exchange(span)
        yield from exchange.take_part(rank)
        yield barrier.join()

    def _exchange(self, span: KernelCost) -> Exchange:
        return Exchange(self.env, self.network.route(span, self.ranks), span.lasts)
