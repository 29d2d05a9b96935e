"""The network of a fleet: the clock, its links, and the flows on them."""

from collections.abc import Callable

import simpy
from attrs import define

from ksim.network.flows import Flow, Flows
from ksim.network.links import Links

__all__ = ["FleetNetwork"]


@define(eq=False)
class FleetNetwork:
    """What all that moves bytes in a fleet shares: transfers of KV between engines, and copies between tiers."""

    env: simpy.Environment
    links: Links
    flows: Flows

    def at(self, moment: float, work: Callable[[], None]) -> None:
        """Do *work* at *moment*, or now if that has passed."""
        timer = self.env.timeout(max(moment - self.env.now, 0.0))
        timer.callbacks.append(lambda _: work())

    def copy(self, size: float, source: str, target: str) -> Flow:
        """Start to copy *size* bytes now, as over PCIe from a node's memory ("host0") to a GPU ("gpu3"), or of weights
        from the "storage"; the flow's `done` fires when they have arrived."""
        return self.flows.start(size, self.links.path(source, target))
