"""Routers that go by the load of engines, by turns or by chance."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field, frozen, validators
from attrs.validators import ge

from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["RoundRobin", "Random", "LeastOutstanding", "PowerOfTwo", "PrefixAware"]


@define
class RoundRobin:
    """One after the other, whatever they have to do."""

    signals: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = "nginx's default"

    _turn: int = 0

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        engine = engines[self._turn % len(engines)]
        self._turn += 1
        return engine


@define
class Random:
    """To any engine, whatever it has to do.

    Draws the engine by `seed`, all with the same probability: a plain Kubernetes Service, whose kube-proxy draws a
    server for each connection.
    """

    source: ClassVar[str] = "Kubernetes, kube-proxy in its default mode iptables"
    signals: ClassVar[tuple[str, ...]] = ()
    seed: int = field(default=0, validator=ge(0))
    _random: Any = field(default=None, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        if self._random is None:
            self._random = stream(self.seed, "random")
        return engines[int(self._random.integers(len(engines)))]


@frozen
class LeastOutstanding:
    """To the engine with the fewest requests that are not finished; the first of equals."""

    signals: ClassVar[tuple[str, ...]] = ("books",)
    source: ClassVar[str] = "join the shortest queue; nginx's least_conn"

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        return min(engines, key=lambda engine: engine.outstanding)


@define
class PowerOfTwo:
    """To the one with fewer unfinished requests of two engines drawn at random.

    Draws two different engines by `seed`; the first drawn has the request if both have as many.

    SGLang's gateway compares the tokens in use that its load monitor has for both workers, and without these the
    requests that it has in flight there; here it is the requests.
    """

    source: ClassVar[str] = "SGLang sgl-model-gateway, policies/power_of_two.rs; Mitzenmacher 2001"
    signals: ClassVar[tuple[str, ...]] = ("books",)
    seed: int = field(default=0, validator=ge(0))
    _random: Any = field(default=None, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        count = len(engines)
        if count == 1:
            return engines[0]
        if self._random is None:
            self._random = stream(self.seed, "power_of_two")
        drawn = int(self._random.integers(count * (count - 1)))
        place, ahead = drawn // (count - 1), drawn % (count - 1)
        first, second = engines[place], engines[(place + 1 + ahead) % count]
        return first if first.outstanding <= second.outstanding else second


@frozen
class PrefixAware:
    """To the engine that has most of the prompt cached, less a penalty for its load.

    One unfinished request weighs as much as `load_tokens` cached tokens.
    """

    signals: ClassVar[tuple[str, ...]] = ("books", "kv_events")
    source: ClassVar[str] = "ksim"

    load_tokens: float = field(default=256.0, validator=validators.ge(0))

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        return max(engines, key=lambda e: e.prefix_hit(request) - self.load_tokens * e.outstanding)
