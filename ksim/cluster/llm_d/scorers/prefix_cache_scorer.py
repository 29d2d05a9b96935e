"""The share of the prompt's blocks that an engine has."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, gt, le, optional

from ksim.cluster.llm_d.cycle import APPROXIMATE, Cycle, Match
from ksim.cluster.routers import EngineView
from ksim.foundation.errors import ConfigError

__all__ = ["PrefixCacheScorer"]


@frozen
class PrefixCacheScorer:
    """With a `prefix_length_weight`, the matched tokens' share of `max_model_len`, squared, has that weight beside it.

    Source: llm-d-router, scheduling/scorer/prefix/plugin.go (October 2026).
    """

    prefix_match_info_producer_name: str = APPROXIMATE
    prefix_length_weight: float = field(default=0.0, validator=[ge(0), le(1)])
    max_model_len: int | None = field(default=None, validator=optional(gt(0)))

    def __attrs_post_init__(self) -> None:
        if self.prefix_length_weight and self.max_model_len is None:
            raise ConfigError("maxModelLen", "is missing, and prefixLengthWeight needs it")

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        match = cycle.matches[self.prefix_match_info_producer_name]
        if not match.total or not match.blocks:
            return [0.0] * len(engines)
        if self.prefix_length_weight:
            return [self._with_length(match, engine.number) for engine in engines]
        blocks, total = match.blocks, match.total
        return [blocks.get(engine.number, 0) / total for engine in engines]

    def _with_length(self, match: Match, number: int) -> float:
        weight, length = self.prefix_length_weight, min(1.0, match.tokens(number) / (self.max_model_len or 1))
        return weight * length * length + (1.0 - weight) * match.share(number)
