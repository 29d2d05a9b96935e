"""Filters of llm-d's endpoint picker: which engines stay."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from attrs import field, frozen
from attrs.validators import ge, gt, in_, le

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, Cycle, seconds
from ksim.cluster.routers import EngineView
from ksim.foundation.errors import ConfigError

__all__ = ["ActiveRequestFilter", "DecodeFilter", "LeastKvCacheFilter", "LeastQueueFilter", "LowQueueFilter",
           "PrefillFilter", "PrefixCacheAffinityFilter", "UtilizationDetector"]


@frozen
class ActiveRequestFilter:
    """Engines with at most `max_requests` of the router's requests.

    Source: llm-d-router, scheduling/filter/activerequest/filter.go (October 2026).
    """

    max_requests: int = field(validator=gt(0))
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str = IN_FLIGHT

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        requests = cycle.loads[self.in_flight_load_producer_name].requests
        kept = [engine for engine in engines if requests.get(engine.number, 0) <= self.max_requests]
        return engines if not kept and self.fallback_on_empty else kept


@frozen
class DecodeFilter:
    """Engines that decode: those of role decode or both.

    Source: llm-d-router, scheduling/filter/bylabel/roles.go (October 2026).
    """

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        return [engine for engine in engines if engine.role != "prefill"]


@frozen
class LeastKvCacheFilter:
    """Engines whose use of the KV cache is in the lowest part of the range, as many parts as there are engines.

    Source: gateway-api-inference-extension 0.5.1, scheduling/framework/plugins/filter.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        shares = [engine.kv_usage for engine in engines]
        most = min(shares) + (max(shares) - min(shares)) / len(shares)
        return [engine for engine in engines if engine.kv_usage <= most]


@frozen
class LeastQueueFilter:
    """Engines whose queue is in the lowest part of the range, as many parts as there are engines.

    Source: gateway-api-inference-extension 0.5.1, scheduling/framework/plugins/filter/least_queue_filter.go.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        queues = [engine.waiting for engine in engines]
        most = min(queues) + (max(queues) - min(queues)) // len(queues)
        return [engine for engine in engines if engine.waiting <= most]


@frozen
class LowQueueFilter:
    """Engines whose queue is no longer than `threshold`.

    Source: gateway-api-inference-extension 0.5.1, pkg/epp/scheduling/framework/plugins/filter.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    threshold: int = field(default=128, validator=ge(0))

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        return [engine for engine in engines if engine.waiting <= self.threshold]


@frozen
class PrefillFilter:
    """Engines that prefill: those of role prefill or both.

    Source: llm-d-router, scheduling/filter/bylabel/roles.go (October 2026).
    """

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        return [engine for engine in engines if engine.role != "decode"]


@frozen
class PrefixCacheAffinityFilter:
    """Engines that have most of the prompt, unless they have much more to prefill than the others.

    Keeps those with a share of `affinity_threshold` or more.

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


@frozen
class UtilizationDetector:
    """Engines that are not saturated: a short queue, room in the KV cache, and metrics that are not stale.

    All engines, if all are saturated.  `headroom` raises both thresholds by that share.

    Source: llm-d-router, plugins/flowcontrol/saturationdetector/utilization (October 2026).  As the
    saturationDetector of a configuration, it holds back only what may be shed, which no request of ksim's says.
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    queue_depth_threshold: int = field(default=5, validator=gt(0))
    kv_cache_util_threshold: float = field(default=0.8, validator=[gt(0), le(1)])
    metrics_staleness_threshold: float = field(default=0.2, converter=seconds, validator=gt(0))
    headroom: float = field(default=0.0, validator=ge(0))

    def keep(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[EngineView]:
        queue, kv = (threshold * (1.0 + self.headroom)
                     for threshold in (self.queue_depth_threshold, self.kv_cache_util_threshold))
        oldest = cycle.now - self.metrics_staleness_threshold
        kept = [engine for engine in engines
                if engine.waiting < queue and engine.kv_usage < kv and engine.scraped_at >= oldest]
        return kept or engines
