"""Scorers of llm-d's endpoint picker: how good each engine is, from 0 to 1."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field, frozen
from attrs.validators import ge, gt, le, optional

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, PRECISE, Cycle, Match, least_best
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["ActiveRequestScorer", "KvCacheUtilizationScorer", "LoadAwareScorer", "LoraAffinityScorer",
           "NoHitLruScorer", "PrecisePrefixCacheScorer", "PrefixCacheScorer", "QueueScorer",
           "RunningRequestsSizeScorer", "SessionAffinityScorer", "TokenLoadScorer"]


@frozen
class ActiveRequestScorer:
    """The fewer requests of the router's an engine has, the better.

    1 with at most `idle_threshold` requests; else from `max_busy_score` down to 0 for the most.

    Source: llm-d-router, scheduling/scorer/activerequest/active_request.go (October 2026).
    """

    idle_threshold: int = field(default=0, validator=ge(0))
    max_busy_score: float = field(default=1.0, validator=[ge(0), le(1)])
    in_flight_load_producer_name: str = IN_FLIGHT
    request_timeout: str = ""  # without effect, in llm-d too

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        requests = cycle.loads[self.in_flight_load_producer_name].requests
        counts = [requests.get(engine.number, 0) for engine in engines]
        most = max(counts)
        return [1.0 if count <= self.idle_threshold else (most - count) / most * self.max_busy_score
                for count in counts]


@frozen
class KvCacheUtilizationScorer:
    """1 less the share of the KV cache that is in use.

    Source: llm-d-router, scheduling/scorer/kvcacheutilization/kvcache_utilization.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [1.0 - engine.kv_usage for engine in engines]


@frozen
class LoadAwareScorer:
    """A half without a queue, and less with one: none at `threshold` requests.

    Source: llm-d-router, scheduling/scorer/loadaware/load_aware.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    threshold: int = field(default=128, validator=gt(0))

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [0.5 * (1.0 - min(engine.waiting, self.threshold) / self.threshold) for engine in engines]


@define(eq=False)
class LoraAffinityScorer:
    """1 where the request's LoRA adapter is on the GPUs, 0.8 where there is room for one more, 0.6 where it is queued.

    llm-d scrapes which adapters run and wait at an engine; here those of the router's own requests are counted.

    `max_loras` is the engines' --max-loras, which llm-d scrapes too.

    Source: llm-d-router, scheduling/scorer/loraaffinity/lora_affinity.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)
    max_loras: int = field(default=1, validator=gt(0))
    _adapters: dict[int, Counter[str]] = field(factory=dict, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return [self._score(cycle.request.adapter, engine) for engine in engines]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        if cycle.request.adapter:
            self._adapters.setdefault(number, Counter())[cycle.request.adapter] += 1

    def ended(self, request: Request, number: int) -> None:
        adapters = self._adapters.get(number, Counter())
        if adapters[request.adapter] > 0:
            adapters[request.adapter] -= 1

    def _score(self, adapter: str, engine: EngineView) -> float:
        if adapter and engine.adapter_place(adapter) == "gpu":
            return 1.0
        theirs = +self._adapters.get(engine.number, Counter[str]())
        return 0.8 if len(theirs) < self.max_loras else 0.6 if adapter in theirs else 0.0


@define(eq=False)
class NoHitLruScorer:
    """For a prompt that no engine has anything of: the longer since an engine got such a one, the better.

    Engines that never got one come first, in their order; if any engine has part of the prompt, all get a half.

    Source: llm-d-router, scheduling/scorer/nohitlru/no_hit_lru.go (October 2026).
    """

    lru_size: int = field(default=1024, validator=gt(0))
    prefix_match_info_producer_name: str = APPROXIMATE
    prefix_plugin_type: str = ""  # without effect, in llm-d too
    prefix_plugin_name: str = ""
    _oldest_first: dict[int, None] = field(factory=dict, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        if not self._is_cold(cycle, engines):
            return [0.5] * len(engines)
        if len(engines) == 1:
            return [1.0]
        ranks = self._ranks(engines)
        return [max(1.0 - rank / (len(engines) - 1), 0.0) for rank in ranks]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        if not cycle.matches[self.prefix_match_info_producer_name].blocks:
            self._oldest_first.pop(number, None)
            self._oldest_first[number] = None
            if len(self._oldest_first) > self.lru_size:
                del self._oldest_first[next(iter(self._oldest_first))]

    def _is_cold(self, cycle: Cycle, engines: Sequence[EngineView]) -> bool:
        blocks = cycle.matches[self.prefix_match_info_producer_name].blocks
        return not blocks or not any(engine.number in blocks for engine in engines)

    def _ranks(self, engines: Sequence[EngineView]) -> list[int]:
        """The rank of each engine: first those that never got a cold request, then the others, the oldest first."""
        places = {number: index for index, number in enumerate(self._oldest_first)}
        never = [engine.number for engine in engines if engine.number not in places]
        firsts = {number: index for index, number in enumerate(never)}
        return [firsts[engine.number] if engine.number in firsts else len(never) + places[engine.number]
                for engine in engines]


@frozen
class PrecisePrefixCacheScorer:
    """The share of the prompt's blocks that an engine has by its KV events, with a weight for each tier.

    The weights of tiers are those of the producer that it reads.

    Source: llm-d-router, scheduling/scorer/preciseprefixcache/precise_prefix_cache.go, and its kvcache package's
    kvblock_scorer.go (October 2026).
    """

    prefix_match_info_producer_name: str = PRECISE

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        match = cycle.matches[self.prefix_match_info_producer_name]
        if not match.total:
            return [0.0] * len(engines)
        return [min(match.weighted.get(engine.number, 0.0) / match.total, 1.0) for engine in engines]


@frozen
class PrefixCacheScorer:
    """The share of the prompt's blocks that an engine has.

    With a `prefix_length_weight`, the matched tokens' share of `max_model_len`, squared, has that weight beside it.

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


@frozen
class QueueScorer:
    """The shorter its queue, the better: 1 for the shortest, 0 for the longest.

    Source: llm-d-router, pkg/epp/framework/plugins/scheduling/scorer/queuedepth/queue.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return least_best([engine.waiting for engine in engines])


@frozen
class RunningRequestsSizeScorer:
    """The fewer requests run, the better: 1 for the fewest, 0 for the most.

    Source: llm-d-router, scheduling/scorer/runningrequests/runningrequest.go (October 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("metrics",)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        return least_best([engine.running for engine in engines])


@define(eq=False)
class SessionAffinityScorer:
    """1 for the engine that served the session's turn before, 0 for all others.

    The client sends back the token that the end of an answer came with, which names its engine.

    Source: llm-d-router, scheduling/scorer/sessionaffinity/session_affinity.go (May 2026: x-session-token).
    """

    _served: dict[str, int] = field(factory=dict, init=False)
    _engines: set[int] = field(factory=set, init=False)

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        served = self._served.get(cycle.request.session, -1)
        return [1.0 if engine.number == served else 0.0 for engine in engines]

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        self._engines.add(number)

    def ended(self, request: Request, number: int) -> None:
        if request.session and number in self._engines:
            self._served[request.session] = number


@frozen
class TokenLoadScorer:
    """The fewer prompt tokens are in flight to an engine, with those of the request that it lacks, the better.

    1 without any, 0 from `queue_threshold_tokens` on.

    Source: llm-d-router, scheduling/scorer/tokenload/token_load.go (October 2026).
    """

    queue_threshold_tokens: int = field(default=4_194_304, validator=gt(0))
    in_flight_load_producer_name: str = IN_FLIGHT

    def score(self, cycle: Cycle, engines: Sequence[EngineView]) -> Sequence[float]:
        in_flight, most = cycle.loads[self.in_flight_load_producer_name], self.queue_threshold_tokens
        tokens, added = in_flight.tokens, in_flight.added
        loads = [tokens.get(engine.number, 0) + added[engine.number] for engine in engines]
        return [1.0 - (load if load < most else most) / most for load in loads]
