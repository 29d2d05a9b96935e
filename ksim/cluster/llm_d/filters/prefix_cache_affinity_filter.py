"""Engines that have most of the prompt, unless they have much more to prefill than the others."""

from collections.abc import Sequence
from typing import Literal

from attrs import field, frozen
from attrs.validators import ge, in_, le

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, Cycle
from ksim.cluster.routers import EngineView
from ksim.foundation.errors import ConfigError

__all__ = ["PrefixCacheAffinityFilter"]


@frozen
class PrefixCacheAffinityFilter:
    """Keeps those with a share of `affinity_threshold` or more.

    It keeps all if none has, by chance (`exploration_probability`), or if the best of those that have is slower to
    the first token than the best of the others by more than `max_ttft_penalty_ms`.  That time is the tokens in
    flight by `peak_prefill_throughput` (tokens/s).  `max_tokens_in_flight_penalty` compares the tokens themselves;
    0 turns either off.

    Source: llm-d-router, scheduling/filter/prefixcacheaffinity/plugin.go (October 2026; the penalty in tokens: May).
    """

    affinity_threshold: float = field(default=0.8, validator=[ge(0), le(1)])
    exploration_probability: float = field(default=0.0, validator=[ge(0), le(1)])
    max_ttft_penalty_ms: float = field(default=18_000.0, validator=ge(0), metadata={"key": "maxTTFTPenaltyMs"})
    max_tokens_in_flight_penalty: int = field(default=0, validator=ge(0))
    peak_prefill_throughput: float = field(default=15_928.0, validator=ge(0))
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = field(
        default="prefillThroughput", validator=in_(("prefillThroughput", "latencyPredictor")))
    prefix_match_info_producer_name: str = APPROXIMATE
    in_flight_load_producer_name: str = IN_FLIGHT

    def __attrs_post_init__(self) -> None:
        if self.ttft_source == "latencyPredictor":
            raise ConfigError("ttftSource", "is 'latencyPredictor', which ksim does not simulate; it simulates"
                                            " 'prefillThroughput'")
        if self.max_ttft_penalty_ms and not self.peak_prefill_throughput:
            raise ConfigError("peakPrefillThroughput", "is 0, and maxTTFTPenaltyMs needs one above 0")

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        if len(engines) <= 1 or not self.affinity_threshold or self._explores(cycle):
            return engines
        match = cycle.matches[self.prefix_match_info_producer_name]
        least, blocks = self.affinity_threshold * match.total, match.blocks
        sticky = [engine for engine in engines if blocks.get(engine.number, 0) >= least] if match.total else []
        if not sticky or len(sticky) == len(engines) or not self._is_worth(cycle, sticky, engines):
            return engines
        return sticky

    def _explores(self, cycle: Cycle) -> bool:
        return self.exploration_probability > 0 and cycle.chance.share() < self.exploration_probability

    def _is_worth(self, cycle: Cycle, sticky: Sequence[EngineView], engines: Sequence[EngineView]) -> bool:
        """Whether the wait at *sticky* engines is no longer than at others by more than the penalty."""
        if not self.max_ttft_penalty_ms and not self.max_tokens_in_flight_penalty:
            return True
        tokens = cycle.loads[self.in_flight_load_producer_name].tokens
        numbers = {engine.number for engine in sticky}
        more = (min(tokens.get(number, 0) for number in numbers)
                - min(tokens.get(engine.number, 0) for engine in engines if engine.number not in numbers))
        slower = more / self.peak_prefill_throughput * 1000 if self.max_ttft_penalty_ms else 0.0
        return (slower <= self.max_ttft_penalty_ms or not self.max_ttft_penalty_ms) and (
            more <= self.max_tokens_in_flight_penalty or not self.max_tokens_in_flight_penalty)
