"""Networks of which only capacities are known, and flows on them."""

from collections.abc import Iterable, Sequence
from math import inf

import simpy
from attrs import frozen

from ksim.network.flows import Flow, Flows


@frozen
class Wires:
    """Links without names."""

    capacities: Sequence[float]


@frozen
class Sent:
    """A flow of `size` bytes that starts at `time`."""

    time: float
    size: float
    path: Sequence[int]
    cap: float = inf
    weights: Sequence[float] | None = None


class Watched:
    """Flows from one moment to the next: every use of links that they tell of, and their rates after each event."""

    def __init__(self, capacities: Sequence[float], sent: Iterable[Sent]) -> None:
        self.env = simpy.Environment()
        self.capacities = capacities
        self.used: list[tuple[float, int, float]] = []
        self.flows = Flows(self.env, Wires(capacities), lambda *use: self.used.append(use))
        self.all: list[Flow] = []
        #: After each step of the simulation: the time, and the rates of the flows that are on their way.
        self.rates: list[tuple[float, dict[Flow, float]]] = []
        for flow in sent:
            self.env.process(self._send(flow))

    def _send(self, flow: Sent):
        yield self.env.timeout(flow.time)
        self.all.append(self.flows.start(flow.size, flow.path, flow.cap, flow.weights))

    def run(self) -> "Watched":
        """To the end of the last flow."""
        while self.env.peek() < inf:
            self.env.step()
            self.rates.append((self.env.now, {flow: flow.rate for flow in self.all if flow.ended is None}))
        return self

    @property
    def seconds(self) -> list[float]:
        """How long each flow took, in the order in which they started."""
        return [flow.ended - flow.began for flow in self.all]


def run(capacities: Sequence[float], *sent: Sent) -> Watched:
    return Watched(capacities, sent).run()
