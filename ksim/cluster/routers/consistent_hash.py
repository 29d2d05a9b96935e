"""To the engine that owns the hash of the session or of the prompt's beginning, if wanted within bounds of load."""

from collections.abc import Sequence
from math import ceil
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, in_, le, optional

from ksim.cluster.hash_ring import HashRing
from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["ConsistentHash"]


@define
class ConsistentHash:
    """Engines and keys are points on a ring of hashes; a key belongs to the next engine clockwise.

    Each engine has `virtual_nodes` points.  The `key` is "session", or "prefix": the names of the first
    `prefix_token_count` tokens of the prompt and its adapter.  A request without a session has the key of its prefix,
    and one whose tokens have no names a key of its own.

    With `hash_balance_factor`, a percentage as in Envoy, no engine has more than ceil(factor / 100 x (unfinished
    requests + 1) / engines): a full one is passed over for the next clockwise (Mirrokni et al. 2018).  Envoy, whose
    bound is looser by one request, goes on at random instead.
    """

    source: ClassVar[str] = "SGLang sgl-model-gateway, policies/prefix_hash.rs; bounds: arXiv 1608.01350"
    key: str = field(default="session", validator=in_(("session", "prefix")))
    prefix_token_count: int = field(default=256, validator=gt(0))
    virtual_nodes: int = field(default=150, validator=(gt(0), le(10_000)))
    hash_balance_factor: int | None = field(default=None, validator=optional(ge(100)))
    _ring: HashRing = field(factory=lambda: HashRing((), 0), init=False)

    @property
    def signals(self) -> tuple[str, ...]:
        """Nothing, or with bounds what the router sent where."""
        return () if self.hash_balance_factor is None else ("books",)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        members = [engine.number for engine in engines]
        if members != self._ring.members:
            self._ring = HashRing(members, self.virtual_nodes)
        clockwise, places = self._ring.clockwise(self.key_of(request)), {n: i for i, n in enumerate(members)}
        if self.hash_balance_factor is None:
            return engines[places[next(clockwise)]]
        loads = [engine.outstanding for engine in engines]
        most = ceil(self.hash_balance_factor * (sum(loads) + 1) / (100 * len(loads)))
        return engines[next(places[number] for number in clockwise if loads[places[number]] < most)]

    def key_of(self, request: Request) -> str:
        """What *request* is placed by."""
        if self.key == "session" and request.session:
            return f"session {request.session}"
        count = min(max(self.prefix_token_count // request.chunk_tokens, 1), -(-request.prompt // request.chunk_tokens))
        names = tuple(request.chunks[:count])
        return f"prefix {request.adapter} {names!r}" if names else f"request {request.id}"
