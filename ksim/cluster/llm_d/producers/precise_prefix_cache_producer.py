"""Knows by KV events what engines have cached, in all their tiers."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import Factory, define, field
from attrs.validators import ge

from ksim.cluster.llm_d.cycle import Cycle, Match
from ksim.cluster.routers import EngineView

__all__ = ["PrecisePrefixCacheProducer"]

#: What a block in each tier counts (llm-d-kv-cache's default backends); "disk" is vLLM's own tier of files.
_WEIGHTS = {"gpu": 1.0, "cpu": 0.8, "disk": 0.3, "storage": 0.3}


@define(eq=False)
class PrecisePrefixCacheProducer:
    """Blocks are of `block_size` tokens, by default of the engines' size; `weights` says what one in a tier counts.

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
