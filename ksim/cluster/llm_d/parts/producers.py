"""Producers of llm-d's endpoint picker: what other parts read about engines."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from attrs import Factory, define, field
from attrs.validators import ge, gt, optional

from ksim.cluster.llm_d.cycle import APPROXIMATE, Cycle, InFlightLoad, Match
from ksim.cluster.prefix_index import PrefixIndex, Prompt
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["ApproxPrefixCacheProducer", "InflightLoadProducer", "PrecisePrefixCacheProducer"]


#: The smallest blocks that llm-d takes.
_SMALLEST = 64


@define(eq=False)
class ApproxPrefixCacheProducer:
    """Guesses what engines have cached from what they were sent.

    An engine has the blocks that it was sent last, `lru_capacity_per_server` of them, or as many as its KV cache
    has if `auto_tune`.

    Blocks are of `block_size_tokens`, or of the engines' size with `auto_tune`, but of 64 tokens at least.  The first
    `max_prefix_tokens_to_match` tokens of a prompt count; if that is 0, its first `max_prefix_blocks_to_match` blocks;
    if both are 0, all.

    Source: llm-d-router, requestcontrol/dataproducer/approximateprefix (October 2026).
    """

    name: str
    auto_tune: bool = True
    block_size_tokens: int = field(default=16, validator=gt(0))
    block_size: int = field(default=0, validator=ge(0))
    max_prefix_blocks_to_match: int = field(default=2048, validator=ge(0))
    max_prefix_tokens_to_match: int = field(default=131_072, validator=ge(0))
    lru_capacity_per_server: int = field(default=31_250, validator=gt(0))
    _index: PrefixIndex | None = field(default=None, init=False)
    _prompt: Prompt = field(factory=lambda: Prompt((), 0), init=False)
    _kv_blocks: dict[int, int] = field(factory=dict, init=False)

    def look(self, cycle: Cycle, engines: Sequence[EngineView]) -> None:
        index = self._index or self._make(engines)
        if self.auto_tune and any(engine.number not in self._kv_blocks for engine in engines):
            self._kv_blocks |= {engine.number: engine.kv_blocks for engine in engines}
        self._prompt = prompt = index.prompt(cycle.request)
        cycle.matches[self.name] = Match(prompt.blocks, index.block_tokens, index.shared(prompt))

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        capacity = self._kv_blocks.get(number) or self.lru_capacity_per_server
        assert self._index is not None, "producers look before anything is sent"
        self._index.add(self._prompt, number, cycle.now, capacity)

    def gone(self, number: int) -> None:
        if self._index is not None:
            self._index.forget(number)

    def _make(self, engines: Sequence[EngineView]) -> PrefixIndex:
        size = self.block_size or self.block_size_tokens
        if self.auto_tune:
            size = engines[0].block_tokens or size
        size = max(size, _SMALLEST)
        most = (self.max_prefix_tokens_to_match // size if self.max_prefix_tokens_to_match
                else self.max_prefix_blocks_to_match or inf)
        index = self._index = PrefixIndex(size, most_blocks=most, partial=True)
        return index


@define(eq=False)
class InflightLoadProducer:
    """Counts the requests that engines have been sent, and the prompt tokens that they have yet to compute.

    A request's tokens are those of its prompt that the engine was taken to lack when it was sent.

    They count until its first token.  With `add_estimated_output_tokens`, `output_ratio` times the prompt's tokens are
    added, `max_estimated_output_tokens` at most, and all count to its end.  A request that is split is gone from the
    engine that prefilled it with the first token.

    Source: llm-d-router, requestcontrol/dataproducer/inflightload (September 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("books",)
    name: str
    add_estimated_output_tokens: bool = False
    output_ratio: float = field(default=1.5, validator=ge(0))
    max_estimated_output_tokens: int | None = field(default=None, validator=optional(ge(0)))
    prefix_match_info_producer_name: str = APPROXIMATE
    sync_cross_replica_state: bool = True  # there is one picker
    _requests: dict[int, int] = field(factory=dict, init=False)
    _tokens: dict[int, int] = field(factory=dict, init=False)
    _added: dict[int, int] = field(factory=dict, init=False)
    _sent: dict[tuple[int, int], tuple[int, bool]] = field(factory=dict, init=False)

    def look(self, cycle: Cycle, engines: Sequence[EngineView]) -> None:
        match = cycle.matches.get(self.prefix_match_info_producer_name)
        plain = self._lacks(cycle.request, match, 0)
        self._added = added = dict.fromkeys([engine.number for engine in engines], plain)
        if match is not None and match.total:
            for number, blocks in match.blocks.items():
                added[number] = self._lacks(cycle.request, match, blocks)
        cycle.loads[self.name] = InFlightLoad(self._requests, self._tokens, added)

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        tokens = self._added[number]
        self._requests[number] = self._requests.get(number, 0) + 1
        self._tokens[number] = self._tokens.get(number, 0) + tokens
        self._sent[cycle.request.id, number] = tokens, profile == "prefill"

    def first_token(self, request: Request, number: int) -> None:
        tokens, prefills = self._sent.get((request.id, number), (0, False))
        if prefills:
            self.ended(request, number)
        elif tokens and not self.add_estimated_output_tokens:
            self._tokens[number] -= tokens
            self._sent[request.id, number] = 0, False

    def ended(self, request: Request, number: int) -> None:
        sent = self._sent.pop((request.id, number), None)
        if sent is not None:
            self._requests[number] -= 1
            self._tokens[number] -= sent[0]

    def _lacks(self, request: Request, match: Match | None, blocks: int) -> int:
        """The tokens of *request* that an engine has to compute that has *blocks* blocks of its prompt."""
        tokens = request.prompt
        if match is not None and match.block_tokens:
            tokens = max(match.total - blocks, 0) * match.block_tokens + max(
                tokens - match.total * match.block_tokens, 0)
        return tokens + self._output(request) if self.add_estimated_output_tokens else tokens

    def _output(self, request: Request) -> int:
        output = round(request.prompt * self.output_ratio)
        limits = [limit for limit in (request.max_tokens, self.max_estimated_output_tokens) if limit is not None]
        return min([output, *limits])


#: What a block in each tier counts (llm-d-kv-cache's default backends); "disk" is vLLM's own tier of files.
_WEIGHTS = {"gpu": 1.0, "cpu": 0.8, "disk": 0.3, "storage": 0.3}


@define(eq=False)
class PrecisePrefixCacheProducer:
    """Knows by KV events what engines have cached, in all their tiers.

    Blocks are of `block_size` tokens, by default of the engines' size; `weights` says what one in a tier counts.

    Source: llm-d-router, requestcontrol/dataproducer/preciseprefixcache, and llm-d-kv-cache, pkg/kvcache/backend.go
    (October 2026).  Entries that anticipate KV events (speculativeIndexing) are not simulated.
    """

    signals: ClassVar[tuple[str, ...]] = ("kv_events",)
    name: str
    block_size: int = field(default=0, validator=ge(0))
    weights: Mapping[str, float] = Factory(dict)
    token_processor_config: Mapping[str, Any] = Factory(dict)
    indexer_config: Mapping[str, Any] = Factory(dict)
    kv_events_config: Mapping[str, Any] = Factory(dict)  # how events get here is the scenario's `signals`
    speculative_indexing: bool = False
    speculative_ttl: str = field(default="", metadata={"key": "speculativeTTL"})

    def look(self, cycle: Cycle, engines: Sequence[EngineView]) -> None:
        size = self._size(engines)
        total = cycle.request.prompt // size
        blocks, weighted = dict[int, int](), dict[int, float]()
        for engine in engines:
            if weight := self._weighted(cycle, engine, size, total):
                weighted[engine.number], blocks[engine.number] = weight, int(weight)
        cycle.matches[self.name] = Match(total, size, blocks, weighted)

    def _weighted(self, cycle: Cycle, engine: EngineView, size: int, total: int) -> float:
        weight = min(engine.prefix_hit(cycle.request) // size, total) * self._weight("gpu")
        for tier, tokens in engine.tier_hits(cycle.request).items():
            weight += tokens // size * self._weight(tier)
        return weight

    def _size(self, engines: Sequence[EngineView]) -> int:
        configured = self.block_size or int(self.token_processor_config.get("blockSize", 0))
        return configured or engines[0].block_tokens or 16

    def _weight(self, tier: str) -> float:
        return self.weights.get(tier, _WEIGHTS.get(tier, 0.0))
