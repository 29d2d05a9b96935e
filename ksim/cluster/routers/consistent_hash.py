"""To the engine that owns the hash of the session or of the prompt's beginning, if wanted within bounds of load.

A ring of hashes: keys and engines are points on it, and a key belongs to the next engine clockwise.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import ceil
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, in_, le, optional

from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["ConsistentHash"]


def point(text: str) -> int:
    """The point of *text* on the ring: 64 bits, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@define
class HashRing:
    """Each of the engines numbered `members` has so many `virtual_nodes`, which even out the shares of the ring."""

    members: Sequence[int]
    virtual_nodes: int
    _points: list[int] = field(init=False)
    _owners: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        placed = sorted((point(f"engine {number} node {node}"), number)
                        for number in self.members for node in range(self.virtual_nodes))
        self._points, self._owners = [place for place, _ in placed], [number for _, number in placed]

    def clockwise(self, key: str) -> Iterator[int]:
        """The engines in the order in which one meets them clockwise from *key* on, each once."""
        start, met = bisect_left(self._points, point(key)), set[int]()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner


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
        """The text by which *request* is placed on the ring."""
        if self.key == "session" and request.session:
            return f"session {request.session}"
        count = min(max(self.prefix_token_count // request.chunk_tokens, 1), -(-request.prompt // request.chunk_tokens))
        names = tuple(request.chunks[:count])
        return f"prefix {request.adapter} {names!r}" if names else f"request {request.id}"
