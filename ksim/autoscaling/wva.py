"""llm-d's workload variant autoscaler: by what engines have to spare, the cheapest pool up and the dearest down."""

from collections.abc import Mapping
from math import ceil, gcd, isnan
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, in_, le, optional

from ksim.autoscaling import Decision, Observation, PoolView
from ksim.autoscaling.hpa import SYNC, Controller, Reading, pods_of, words
from ksim.autoscaling.pod_metrics import Scale
from ksim.autoscaling.queue_model import BatchTimes, QueueModel, QueueTarget, TargetTooTight
from ksim.autoscaling.saturation import (
    ReplicaState,
    SaturationSettings,
    TokenAnalyser,
    VariantState,
    analyse_shares,
    targets_by_shares,
    targets_by_tokens,
)
from ksim.autoscaling.scaling_rules import Behavior
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import Seconds, camel, quantity

__all__ = ["Wva"]


@define(field_transformer=camel)
class Wva:
    """Pools are the variants of a model.  `analyzerName` is "" for shares of KV caches and queues, one replica at a
    time; saturation for tokens, as many as are lacking; queue for a model of queues, whose `alpha`, `beta` and `gamma`
    (milliseconds of a pass, of a computed and of a read token) are those of the engines.

    `costs` are those of a replica by pool, by default what its GPUs cost.  Options are called as in llm-d's ConfigMap.

    It only says what it desires: an HPA of each pool, or that of KEDA, goes by that every 15 seconds, as its `behavior`
    lets it.  Without one, desires are met at once.
    """

    source: ClassVar[str] = "github.com/llm-d/llm-d-workload-variant-autoscaler, b08b1c77 (February 2026)"
    analyzer_name: str = field(default="", validator=in_(("", "saturation", "queue")))
    period: Seconds = field(default=60.0, converter=quantity, validator=gt(0), metadata={"written": "interval"})
    kv_cache_threshold: float = field(default=0.8, validator=[gt(0), le(1)])
    queue_length_threshold: float = field(default=5.0, validator=gt(0))
    kv_spare_trigger: float = field(default=0.1, validator=[ge(0), le(1)])
    queue_spare_trigger: float = field(default=3.0, validator=ge(0))
    scale_up_threshold: float = field(default=0.85, validator=[gt(0), le(1)])
    scale_down_boundary: float = field(default=0.7, validator=[gt(0), le(1)])
    costs: Mapping[str, float] = field(factory=dict)
    alpha: float | None = field(default=None, validator=optional(gt(0)))
    beta: float | None = field(default=None, validator=optional(ge(0)))
    gamma: float | None = field(default=None, validator=optional(ge(0)))
    max_batch_size: int = field(default=256, validator=gt(0))
    ttft: float = field(default=0.0, validator=ge(0))
    itl: float = field(default=0.0, validator=ge(0))
    min_replicas: int = field(default=1, validator=ge(0))
    max_replicas: int | None = field(default=None, validator=optional(gt(0)))
    behavior: Behavior | None = None
    _analyser: TokenAnalyser = field(init=False)
    _desired: dict[str, int] = field(factory=dict, init=False)
    _hpas: dict[str, Controller] = field(factory=dict, init=False)
    _looked: float | None = field(default=None, init=False)
    _why: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        if self.kv_spare_trigger >= self.kv_cache_threshold:
            raise ValueError(f"kvSpareTrigger {self.kv_spare_trigger:g} must be below kvCacheThreshold"
                             f" {self.kv_cache_threshold:g}")
        if self.scale_down_boundary >= self.scale_up_threshold:
            raise ValueError(f"scaleDownBoundary {self.scale_down_boundary:g} must be below scaleUpThreshold"
                             f" {self.scale_up_threshold:g}")
        if self.analyzer_name == "queue" and None in (self.alpha, self.beta, self.gamma):
            raise ValueError("analyzerName queue needs alpha, beta and gamma, in milliseconds")
        if self.analyzer_name == "queue" and not (self.ttft or self.itl):
            raise ValueError("analyzerName queue needs a ttft or an itl, in milliseconds")
        if (self.behavior is None) != (self.max_replicas is None):
            raise ValueError("behavior and maxReplicas are of an HPA: give both, or leave both out")
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is above maxReplicas {self.max_replicas}")
        self._analyser = TokenAnalyser(self.settings)

    @property
    def interval(self) -> float:
        """Seconds between two looks, of its own or of an HPA; both fall on multiples of it."""
        return self.period if self.behavior is None else float(gcd(int(self.period), int(SYNC)))

    @property
    def settings(self) -> SaturationSettings:
        return SaturationSettings(self.kv_cache_threshold, self.queue_length_threshold, self.kv_spare_trigger,
                                  self.queue_spare_trigger, self.scale_up_threshold, self.scale_down_boundary)

    def decide(self, seen: Observation) -> Decision | None:
        if strangers := sorted({*self.costs} - {*seen.pools}):
            raise ConfigError("autoscaler.costs", f"there is no pool {strangers[0]!r}; there are"
                                                  f" {', '.join(seen.pools)}")
        if self.behavior is not None:
            return self._through_hpas(seen)
        wanted, why = self._wanted(seen)
        changed = {name: count for name, count in wanted.items() if count != seen.pools[name].wanted}
        self._desired |= changed
        return Decision(changed, why) if changed else None

    def _through_hpas(self, seen: Observation) -> Decision | None:
        """Ask each HPA, which knows what was desired last; a look that is due says what is desired from now on."""
        if self._looked is None or seen.now - self._looked >= self.period:
            self._looked = seen.now
            wanted, self._why = self._wanted(seen)
            self._desired |= wanted
        changed, said = dict[str, int](), []
        for name, pool in seen.pools.items():
            controller = self._hpas.setdefault(name, self._hpa())
            scale = Scale(pool.wanted, pods_of(pool))
            outcome = controller.reconcile(scale, [_reading(self._desired.get(name, pool.wanted))], seen.now)
            if outcome.replicas != pool.wanted:
                changed[name] = outcome.replicas
                said.append(words(outcome))
        return Decision(changed, f"{'; '.join(said)}: {self._why}") if changed else None

    def _hpa(self) -> Controller:
        assert self.max_replicas is not None, "a behavior comes with it"
        return Controller(self.min_replicas, self.max_replicas, self.behavior)

    def _wanted(self, seen: Observation) -> tuple[Mapping[str, int], str]:
        if self.analyzer_name == "queue":
            return self._by_queue(seen)
        replicas = [state for name, pool in seen.pools.items() for state in self._replicas(name, pool)]
        states = [VariantState(name, len(pool.ready) + pool.starting, self._desired.get(name, 0), pool.starting)
                  for name, pool in seen.pools.items()]
        if self.analyzer_name == "saturation":
            found = self._analyser.analyse(replicas, states, (seen.held, 0))
            said = f"{found.demand:.4g} tokens of {found.supply:.4g}: {found.required:.4g} lacking"
            return targets_by_tokens(found, states), f"{said}, {found.spare:.4g} spare"
        shares = analyse_shares(replicas, self.settings)
        said = f"{shares.free} of {shares.total} replicas are not saturated, with {shares.spare_kv:.3g} of KV"
        return (targets_by_shares(shares, replicas, states),
                f"{said} and {shares.spare_queue:.3g} of the queue to spare")

    def _replicas(self, name: str, pool: PoolView) -> list[ReplicaState]:
        prompt, output = (0.0 if isnan(tokens) else tokens for tokens in (pool.input_tokens, pool.output_tokens))
        cost = self.costs.get(name, pool.cost)
        return [ReplicaState(name, replica.kv_usage, replica.waiting, cost, pool.gpu, replica.kv_tokens,
                             tokens_in_use=round(replica.kv_usage * replica.kv_tokens), prompt=prompt, output=output,
                             hit_rate=pool.hit_rate or 0.0) for replica in pool.ready]

    def _by_queue(self, seen: Observation) -> tuple[Mapping[str, int], str]:
        """As many replicas of each pool as carry its arrivals, at the rate that meets the targets on the mean."""
        wanted, rates = {}, []
        for name, pool in seen.pools.items():
            if not pool.arrivals or isnan(pool.input_tokens) or isnan(pool.output_tokens):
                continue
            times = BatchTimes(self.alpha or 0.0, self.beta or 0.0, self.gamma or 0.0, pool.input_tokens,
                               max(1.0, pool.output_tokens))
            try:
                sized = QueueModel(times, self.max_batch_size, 10 * self.max_batch_size).sized(
                    QueueTarget(self.ttft, self.itl))
            except TargetTooTight:
                rates.append(f"{name} misses its target when it is empty")
                continue
            wanted[name] = max(1, ceil(pool.arrivals / self.interval / sized.rate))
            rates.append(f"{sized.rate:.4g} requests/s for a replica of {name}")
        return wanted, ", ".join(rates)


def _reading(desired: int) -> Reading:
    """How an HPA reads the gauge of what is *desired*, of which each replica should have 1."""
    return lambda scale: scale.of_average(desired, 1)
