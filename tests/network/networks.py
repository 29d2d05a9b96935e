"""Networks of which only capacities are known, and flows on them."""

from collections.abc import Iterable, Sequence
from math import inf

import simpy
from attrs import frozen

from ksim.network.flows import Flow, Flows


@frozen
class PlainLinks:
    """Links without names."""

    capacities: Sequence[float]


@frozen
class Sent:
    """A flow of `size` bytes that starts at `time`, and is cancelled `after` so many seconds if it has not ended."""

    time: float
    size: float
    path: Sequence[int]
    cap: float = inf
    weights: Sequence[float] | None = None
    after: float = inf


class Watched:
    """Flows from one moment to the next: every use of links that they tell of, and their rates after each event."""

    def __init__(self, capacities: Sequence[float], sent: Iterable[Sent]) -> None:
        self.env = simpy.Environment()
        self.capacities = capacities
        self.used: list[tuple[float, int, float]] = []
        self.flows = Flows(self.env, PlainLinks(capacities), lambda now, rates: self.used.extend(
            (now, link, rate) for link, rate in rates.items()))
        self.all: list[Flow] = []
        #: After all that happens at a time: the time, and the rates of the flows that are on their way.
        self.rates: list[tuple[float, dict[Flow, float]]] = []
        for flow in sent:
            self.env.process(self._send(flow))

    def _send(self, flow: Sent):
        yield self.env.timeout(flow.time)
        started = self.flows.start(flow.size, flow.path, flow.cap, flow.weights)
        self.all.append(started)
        if flow.after < inf:
            yield self.env.timeout(flow.after)
            self.flows.cancel(started)

    def run(self) -> "Watched":
        """To the end of the last flow."""
        while self.env.peek() < inf:
            self.env.step()
            if self.env.peek() > self.env.now:
                self.rates.append((self.env.now, {flow: flow.rate for flow in self.all if flow.ended is None}))
        return self

    @property
    def seconds(self) -> list[float]:
        """How long each flow took, in the order in which they started."""
        return [flow.ended - flow.began for flow in self.all]


def run(capacities: Sequence[float], *sent: Sent) -> Watched:
    return Watched(capacities, sent).run()
