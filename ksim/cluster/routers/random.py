"""To any engine, whatever it has to do."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import ge

from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["Random"]


@define
class Random:
    """Draws the engine by `seed`, all with the same probability: a plain Kubernetes Service, whose kube-proxy draws a
    server for each connection."""

    source: ClassVar[str] = "Kubernetes, kube-proxy in its default mode iptables"
    signals: ClassVar[tuple[str, ...]] = ()
    seed: int = field(default=0, validator=ge(0))
    _random: Any = field(default=None, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        if self._random is None:
            self._random = stream(self.seed, "random")
        return engines[int(self._random.integers(len(engines)))]
