"""The share of the prompt's blocks that an engine has by its KV events, with a weight for each tier."""

from collections.abc import Sequence

from attrs import frozen

from ksim.cluster.llm_d.cycle import PRECISE, Cycle
from ksim.cluster.routers import EngineView

__all__ = ["PrecisePrefixCacheScorer"]


@frozen
class PrecisePrefixCacheScorer:
    """The weights of tiers are those of the producer that it reads.

    Source: llm-d-router, scheduling/scorer/preciseprefixcache/precise_prefix_cache.go, and its kvcache package's
    kvblock_scorer.go (October 2026).
    """

    prefix_match_info_producer_name: str = PRECISE

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        match = cycle.matches[self.prefix_match_info_producer_name]
        if not match.total:
            return [0.0] * len(engines)
        return [min(match.weighted.get(engine.number, 0.0) / match.total, 1.0) for engine in engines]
