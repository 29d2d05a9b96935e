"""Dynamo's KV router: least prompt blocks to compute, less what is cached, plus blocks being served."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import ge, gt, le, optional

from ksim.cluster.active_blocks import ActiveBlocks
from ksim.cluster.prefix_index import PrefixIndex, Prompt
from ksim.cluster.routers import EngineView, V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["DynamoKv"]

_SHARE: Any = (ge(0), le(1))


@define(eq=False)
class _Cached:
    """What an engine has of a prompt, in blocks on its GPUs, in host memory and on disk."""

    device: int
    host: int = 0
    disk: int = 0


@define
class DynamoKv:
    """An engine's cost is `prefill_load_scale` x (prompt blocks that it has yet to compute and those of the request,
    less credit) + the blocks of the prompts that it serves, with the request's.  The least cost wins; ties by chance.

    A block of the prompt on the GPUs has `overlap_score_credit`, one in host memory or on disk a weight.  A prompt
    counts as yet to compute, less what was taken to be cached, until its first token.  With a `router_temperature` T,
    an engine's chance is in proportion to exp(-cost / ((most - least) x T)).

    What is cached is known by KV events; without `use_kv_events`, an engine is taken to have what it was sent in the
    last `router_ttl_secs`.  `overlap_score_weight` is the old name of `prefill_load_scale`.  Blocks are of `block_size`
    tokens, by default of the engines' size.  Not simulated: the router's own queue (router_queue_threshold), output
    blocks (router_track_output_blocks, off by default) and a model of prefill times.
    """

    source: ClassVar[str] = "github.com/ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.rs (October 2026)"

    overlap_score_credit: float = field(default=1.0, validator=_SHARE)
    overlap_score_credit_decay: float = field(default=0.0, validator=ge(0))
    prefill_load_scale: float = field(default=1.0, validator=ge(0))
    overlap_score_weight: float | None = field(default=None, validator=optional(ge(0)))
    host_cache_hit_weight: float = field(default=0.75, validator=_SHARE)
    disk_cache_hit_weight: float = field(default=0.25, validator=_SHARE)
    decode_active_request_weight: float = field(default=0.0, validator=ge(0))
    router_temperature: float = field(default=0.0, validator=ge(0))
    use_kv_events: bool = True
    router_ttl_secs: float = field(default=120.0, validator=gt(0))
    block_size: int = field(default=0, validator=ge(0))
    seed: int = field(default=0, validator=ge(0))
    scores: Sequence[float] = field(default=(), init=False)
    _index: PrefixIndex | None = field(default=None, init=False)
    _active: ActiveBlocks = field(factory=ActiveBlocks, init=False)
    _prefill: dict[int, int] = field(factory=dict, init=False)
    _requests: dict[int, int] = field(factory=dict, init=False)
    _sent: dict[tuple[int, int], tuple[Prompt, int]] = field(factory=dict, init=False)
    _random: Any = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.overlap_score_weight is not None:
            self.prefill_load_scale = self.overlap_score_weight
            self.overlap_score_credit *= self.overlap_score_weight > 0

    @property
    def signals(self) -> tuple[str, ...]:
        return ("books", "kv_events") if self.use_kv_events else ("books",)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        index = self._index
        if index is None:
            index = self._index = PrefixIndex(self.block_size or engines[0].block_tokens, ttl=self.router_ttl_secs)
        prompt, size = index.prompt(request), index.block_tokens
        cached = self._by_events(request, engines, size) if self.use_kv_events else self._by_index(index, prompt, now)
        costs = self._costs(request, prompt, engines, cached)
        self.scores = [-cost for cost in costs]
        chosen = engines[self._pick(costs)]
        self._send(request, prompt, chosen.number, self._cached_tokens(cached.get(chosen.number), size))
        if not self.use_kv_events:
            index.add(prompt, chosen.number, now)
        return chosen

    def on_first_token(self, request: Request, number: int, now: float) -> None:
        sent = self._sent.get((request.id, number))
        if sent is not None:
            self._prefill[number] -= sent[1]
            self._sent[request.id, number] = sent[0], 0

    def on_end(self, request: Request, number: int, now: float) -> None:
        self.on_first_token(request, number, now)
        sent = self._sent.pop((request.id, number), None)
        if sent is not None:
            self._active.remove(sent[0], number)
            self._requests[number] -= 1

    # What is cached.

    def _by_events(self, request: Request, engines: Sequence[EngineView], size: int) -> dict[int, _Cached]:
        cached = {}
        for engine in engines:
            hit, tiers = engine.prefix_hit(request) // size, engine.tier_hits(request)
            if hit or tiers:
                cached[engine.number] = _Cached(hit, tiers.get("cpu", 0) // size,
                                              (tiers.get("disk", 0) + tiers.get("storage", 0)) // size)
        return cached

    def _by_index(self, index: PrefixIndex, prompt: Prompt, now: float) -> dict[int, _Cached]:
        index.expire(now)
        return {number: _Cached(blocks) for number, blocks in index.leading(prompt).items()}

    def _cached_tokens(self, cached: _Cached | None, size: int) -> int:
        """The tokens that need no computing, those in lower tiers by their weights."""
        if cached is None:
            return 0
        return round((cached.device + self.host_cache_hit_weight * cached.host
                      + self.disk_cache_hit_weight * cached.disk) * size)

    # What engines cost.

    def _costs(self, request: Request, prompt: Prompt, engines: Sequence[EngineView],
               cached: Mapping[int, _Cached]) -> list[float]:
        size, shared, prefill = self._size, self._active.leading(prompt), self._prefill
        scale, blocks, incoming = self.prefill_load_scale, self._active.of, request.prompt
        least = min([prefill.get(engine.number, 0) for engine in engines]) if self.overlap_score_credit_decay else 0
        costs = []
        for number in [engine.number for engine in engines]:
            tokens = prefill.get(number, 0)
            theirs = cached.get(number)
            if theirs is None:
                cost = scale * ((tokens + incoming) / size)
            else:
                raw = tokens + max(incoming, self._cached_tokens(theirs, size))
                cost = scale * max(raw / size - self._credit(theirs, tokens - least, incoming), 0.0)
            costs.append(cost + blocks(number) + prompt.blocks - shared.get(number, 0)
                         + self.decode_active_request_weight * self._requests.get(number, 0))
        return costs

    def _credit(self, cached: _Cached, excess: int, prompt: int) -> float:
        """The blocks that need no computing; `excess` tokens to compute take from the credit of those on the GPUs."""
        credit = self.overlap_score_credit
        if self.overlap_score_credit_decay:
            credit /= 1.0 + self.overlap_score_credit_decay * (excess / self._size) / -(-prompt // self._size)
        return (credit * cached.device + self.host_cache_hit_weight * cached.host
                + self.disk_cache_hit_weight * cached.disk)

    @property
    def _size(self) -> int:
        assert self._index is not None, "the size of blocks is known from the first choice on"
        return self._index.block_tokens

    # Choosing.

    def _pick(self, costs: Sequence[float]) -> int:
        least, most = min(costs), max(costs)
        if self.router_temperature and least < most:
            weights = [exp((least - cost) / ((most - least) * self.router_temperature)) for cost in costs]
            return self._draw(weights)
        if costs.count(least) == 1:
            return costs.index(least)
        equals = [place for place, cost in enumerate(costs) if cost == least]
        return equals[int(self._stream.integers(len(equals)))]

    def _draw(self, weights: Sequence[float]) -> int:
        left = float(self._stream.random()) * sum(weights)
        for place, weight in enumerate(weights):
            left -= weight
            if left <= 0:
                return place
        return len(weights) - 1

    @property
    def _stream(self) -> Any:
        if self._random is None:
            self._random = stream(self.seed, "dynamo_kv")
        return self._random

    def _send(self, request: Request, prompt: Prompt, number: int, cached: int) -> None:
        tokens = max(request.prompt - cached, 0)
        self._sent[request.id, number] = prompt, tokens
        self._active.add(prompt, number)
        self._prefill[number] = self._prefill.get(number, 0) + tokens
        self._requests[number] = self._requests.get(number, 0) + 1
