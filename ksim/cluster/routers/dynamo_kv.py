"""Dynamo's KV router: least prompt blocks to compute, less what is cached, plus blocks being served."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any, ClassVar

from attrs import define, field, frozen
from attrs.validators import ge, gt, le, optional

from ksim.cluster.prefix_index import ActiveBlocks, PrefixIndex, Prompt
from ksim.cluster.routers import EngineView, V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["DynamoKv"]

_SHARE: Any = (ge(0), le(1))


@frozen
class _Cached:
    """The blocks of a prompt that engines have on their GPUs, in order, and credit for those in lower tiers, if any."""

    device: Sequence[int]
    lower: Mapping[int, float]

    def tokens(self, place: int, size: int) -> int:
        """The tokens that need no computing, those in lower tiers by their weights."""
        return round((self.device[place] + self.lower.get(place, 0.0)) * size)


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
        prompt = index.prompt(request)
        cached = self._by_events(request, engines) if self.use_kv_events else self._by_index(prompt, engines, now)
        costs = self._costs(request, prompt, engines, cached)
        self.scores = [-cost for cost in costs]
        place = self._pick(costs)
        chosen = engines[place]
        self._send(request, prompt, chosen.number, cached.tokens(place, index.block_tokens))
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

    def on_gone(self, number: int) -> None:
        if self._index is not None:
            self._index.forget(number)

    # What is cached.

    def _by_events(self, request: Request, engines: Sequence[EngineView]) -> _Cached:
        size = self._size
        tiers = [engine.tier_hits(request) for engine in engines]
        lower = {index: self._lower(tokens) for index, tokens in enumerate(tiers) if tokens} if any(tiers) else {}
        return _Cached([engine.prefix_hit(request) // size for engine in engines], lower)

    def _lower(self, tiers: Mapping[str, int]) -> float:
        """The credit for tokens in *tiers* below the GPU; what all engines share is on disk for Dynamo."""
        size = self._size
        return (self.host_cache_hit_weight * (tiers.get("cpu", 0) // size)
                + self.disk_cache_hit_weight * ((tiers.get("disk", 0) + tiers.get("storage", 0)) // size))

    def _by_index(self, prompt: Prompt, engines: Sequence[EngineView], now: float) -> _Cached:
        assert self._index is not None, "there is an index from the first choice on"
        self._index.expire(now)
        depths = self._index.leading(prompt)
        return _Cached([depths.get(engine.number, 0) for engine in engines], {})

    # What engines cost.

    def _costs(self, request: Request, prompt: Prompt, engines: Sequence[EngineView], cached: _Cached) -> list[float]:
        shared, blocks = self._active.leading(prompt), self._active.amounts
        total, scale, numbers = prompt.blocks, self.prefill_load_scale, [engine.number for engine in engines]
        costs = [(scale * left if left > 0 else 0.0) + blocks.get(number, 0) + total - shared.get(number, 0)
                 for number, left in zip(numbers, self._left(request, numbers, cached), strict=True)]
        if weight := self.decode_active_request_weight:
            return [cost + weight * self._requests.get(number, 0) for cost, number in zip(costs, numbers, strict=True)]
        return costs

    def _left(self, request: Request, numbers: Sequence[int], cached: _Cached) -> list[float]:
        """The blocks that engines have to compute, less the credit for what is cached."""
        size, incoming, prefill, credits = self._size, request.prompt, self._prefill, self._credits(request, numbers)
        if not cached.lower:
            return [(prefill.get(number, 0) + (incoming if incoming > blocks * size else blocks * size)) / size
                    - credit * blocks for number, blocks, credit in zip(numbers, cached.device, credits, strict=True)]
        return [(prefill.get(number, 0) + max(incoming, cached.tokens(index, size))) / size
                - credit * cached.device[index] - cached.lower.get(index, 0.0)
                for index, (number, credit) in enumerate(zip(numbers, credits, strict=True))]

    def _credits(self, request: Request, numbers: Sequence[int]) -> list[float]:
        """The credit of a block on each engine's GPUs: less, the more the engine has to compute beyond the idlest."""
        decay = self.overlap_score_credit_decay
        if not decay:
            return [self.overlap_score_credit] * len(numbers)
        tokens = [self._prefill.get(number, 0) for number in numbers]
        least, size, blocks = min(tokens), self._size, -(-request.prompt // self._size)
        return [self.overlap_score_credit / (1.0 + decay * ((count - least) / size) / blocks) for count in tokens]

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
        equals = [index for index, cost in enumerate(costs) if cost == least]
        return equals[int(self._stream.integers(len(equals)))]

    def _draw(self, weights: Sequence[float]) -> int:
        left = float(self._stream.random()) * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left <= 0:
                return index
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
