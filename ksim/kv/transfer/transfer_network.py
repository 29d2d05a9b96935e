"""The network as transfers see it: what moves between two engines over which links, and how long that takes alone."""

from collections.abc import Sequence
from functools import cached_property

import simpy
from attrs import define, field

from ksim.flow.log import Log
from ksim.kv.transfer.connectors import KvConnector
from ksim.kv.transfer.layout import KvLayout, plan
from ksim.network.flows import Flow, Flows
from ksim.network.links import Links
from ksim.network.network import FleetNetwork

__all__ = ["KvPlacement", "Route", "TransferNetwork"]


@define(eq=False)
class KvPlacement:
    """Where an engine's KV cache is: on `gpus`, numbered through the fleet, stage by stage, with this `layout`."""

    gpus: Sequence[int]
    layout: KvLayout


@define(slots=False)
class Route:
    """The way of KV from one engine to another: `pieces` are path, cap, and bytes by token and by sequence."""

    links: Links
    pieces: Sequence[tuple[Sequence[int], float, float, float]]

    def sizes(self, tokens: int, last: bool) -> list[float]:
        """The bytes of each piece for so many *tokens*; what is kept by sequence goes with the *last* of them."""
        return [per_token * tokens + per_sequence * last for _, _, per_token, per_sequence in self.pieces]

    def alone(self, tokens: int, last: bool) -> float:
        """Seconds until so many *tokens* have arrived, without other transfers."""
        if last and any(per_sequence for *_, per_sequence in self.pieces):
            return self._played(self.sizes(tokens, last))
        return tokens * self._per_token

    @cached_property
    def _per_token(self) -> float:
        return self._played(self.sizes(1 << 20, last=False)) / (1 << 20)

    def _played(self, sizes: Sequence[float]) -> float:
        env = simpy.Environment()
        flows = Flows(env, self.links)
        begun = [flows.start(size, path, cap) for size, (path, cap, *_) in zip(sizes, self.pieces, strict=True)]
        env.run()
        return max((flow.ended or 0.0 for flow in begun), default=0.0)


@define(eq=False)
class TransferNetwork(FleetNetwork):
    """What the transfers of a fleet share beside its network: how their KV moves, and the log."""

    connector: KvConnector
    log: Log
    _routes: dict[tuple[int, int], Route] = field(factory=dict, init=False)

    def route(self, source: KvPlacement, target: KvPlacement) -> Route:
        """The way from one engine to another."""
        key = id(source), id(target)
        if key not in self._routes:
            self._routes[key] = Route(self.links, [
                self._piece(source.gpus[piece.source], target.gpus[piece.target], piece.per_token, piece.per_sequence)
                for piece in plan(source.layout, target.layout)])
        return self._routes[key]

    def _piece(self, source: int, target: int, per_token: float, per_sequence: float
               ) -> tuple[Sequence[int], float, float, float]:
        path = self.links.path(f"gpu{source}", f"gpu{target}")
        return path, self.connector.share * self.links.line_rate(path), per_token, per_sequence

    def send(self, route: Route, tokens: int, last: bool) -> list[Flow]:
        """Start the flows of so many *tokens* now."""
        sizes = route.sizes(tokens, last)
        return [self.flows.start(size, path, cap) for size, (path, cap, *_) in zip(sizes, route.pieces, strict=True)]
