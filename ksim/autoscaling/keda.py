"""KEDA's ScaledObject: to and from zero by polls of its triggers, and an HPA in between.

Of a manifest, the keys of `spec` are options here, as they are written there.
"""

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, ClassVar

from attrs import define, field, frozen
from attrs.validators import ge, gt, in_, min_len, optional

from ksim.autoscaling import Decision, Observation, PoolView
from ksim.autoscaling.hpa import SYNC, Controller, Reading, only_pool, pods_of, words
from ksim.autoscaling.pod_metrics import MetricError, Scale, Wish
from ksim.autoscaling.scaling_rules import Behavior
from ksim.autoscaling.signals import Query
from ksim.foundation.errors import UnknownKey, did_you_mean
from ksim.foundation.units import camel, quantity

__all__ = ["Keda"]

_MILLI = 1000
_BEHAVIORS = ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")


@frozen(field_transformer=camel)
class Fallback:
    """What the HPA is told after more than `failureThreshold` failures: what makes it ask for so many replicas."""

    failure_threshold: int = field(validator=ge(0))
    replicas: int = field(validator=ge(0))
    behavior: str = field(default="static", validator=in_(_BEHAVIORS))

    def wanted(self, current: int) -> int:
        """The replicas to fall back to from *current*."""
        return {"static": self.replicas, "currentReplicas": current,
                "currentReplicasIfHigher": max(current, self.replicas),
                "currentReplicasIfLower": min(current, self.replicas)}[self.behavior]

    def metric(self, target: float, failures: int, current: int, ready: int | None = None) -> int:
        """The value, in thousandths, that the HPA is given for a metric with *target* after so many *failures*.

        One of type Value is for all, so it is divided by the replicas that are *ready*.  Raises MetricError where the
        failure is passed on.
        """
        if failures <= self.failure_threshold:
            raise MetricError(f"{failures} failures are not more than {self.failure_threshold}")
        total = target * _MILLI * self.wanted(current)
        if ready is None:
            return int(total)
        if not ready:
            raise MetricError("no replica is ready")
        return int(total / ready)


@frozen
class Poll:
    """What one poll of the triggers has said; `since_active` is None if they never were.  Times are in seconds."""

    active: bool
    failed: bool = False
    since_active: float | None = None
    since_created: float = 0.0


@frozen(field_transformer=camel)
class Limits:
    """The keys of a ScaledObject that its executor goes by (pkg/scaling/executor/scale_scaledobjects.go)."""

    min_replica_count: int = field(default=0, validator=ge(0))
    idle_replica_count: int | None = field(default=None, validator=optional(ge(0)))
    cooldown_period: int = field(default=300, validator=ge(0))
    initial_cooldown_period: int = field(default=0, validator=ge(0))
    fallback: Fallback | None = None
    #: Of the annotations: all, in or out are paused.
    paused: str = field(default="", validator=in_(("", "all", "in", "out")))

    def after(self, poll: Poll, replicas: int) -> int:
        """The replicas after *poll*, from so many; what the HPA does beside it is not here."""
        wanted = self._active(replicas) if poll.active else self._idle(poll, replicas)
        paused = {"": False, "all": True, "in": wanted < replicas, "out": wanted > replicas}[self.paused]
        return replicas if paused else wanted

    def _active(self, replicas: int) -> int:
        below = self.idle_replica_count is not None and replicas < self.min_replica_count
        return max(1, self.min_replica_count) if below or not replicas else replicas

    def _idle(self, poll: Poll, replicas: int) -> int:
        # A fallback to 0 replicas is idleness; to more is the HPA's to do; without one nothing changes.
        if poll.failed and (self.fallback is None or self.fallback.replicas):
            return replicas
        idle = self.idle_replica_count
        if (idle is not None and replicas > idle) or (replicas and not self.min_replica_count):
            return (idle if idle is not None else self.min_replica_count) if self._is_cool(poll) else replicas
        return self.min_replica_count if idle is None and replicas < self.min_replica_count else replicas

    def _is_cool(self, poll: Poll) -> bool:
        """Whether it was idle for longer than the cool-down, which does not count if it never was active."""
        if poll.since_active is None:
            return poll.since_created > self.initial_cooldown_period
        return poll.since_active > self.cooldown_period


@frozen(field_transformer=camel)
class Trigger:
    """A trigger of type prometheus: a query of one metric, `threshold` of it for each replica.

    It is active above `activationThreshold`; of addresses and names in `metadata`, nothing is looked at.
    """

    type: str = field(validator=in_(("prometheus",)))
    metadata: Mapping[str, Any]
    name: str = ""
    metric_type: str = field(default="AverageValue", validator=in_(("AverageValue", "Value")))
    use_cached_metrics: bool = False
    authentication_ref: Mapping[str, Any] | None = None
    query: Query = field(init=False)
    threshold: float = field(init=False)
    activation: float = field(init=False)

    _KEYS: ClassVar[tuple[str, ...]] = (
        "query", "threshold", "activationThreshold", "ignoreNullValues", "serverAddress", "metricName", "namespace",
        "timeout", "unsafeSsl", "authModes", "customHeaders", "queryParameters")

    def __attrs_post_init__(self) -> None:
        for key in self.metadata:
            if key not in self._KEYS:
                raise UnknownKey(f"metadata.{key}", f"unknown key{did_you_mean(key, self._KEYS)}; expected"
                                                    f" {', '.join(self._KEYS)}")
        for key in ("query", "threshold"):
            if key not in self.metadata:
                raise ValueError(f"metadata.{key} is missing")
        threshold = quantity(self.metadata["threshold"])
        if threshold <= 0:
            raise ValueError(f"metadata.threshold must be above 0, not {threshold:g}")
        strict = str(self.metadata.get("ignoreNullValues", "true")).lower() == "false"
        object.__setattr__(self, "query", Query.of(str(self.metadata["query"]), strict))
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "activation", quantity(self.metadata.get("activationThreshold", 0)))

    def is_active(self, value: float) -> bool:
        """Whether *value* is above the activation threshold; equal to it is not."""
        return value > self.activation

    def wish(self, scale: Scale, value: float) -> Wish:
        """The wish of an HPA for *value*."""
        total, target = round(value * _MILLI), round(self.threshold * _MILLI)
        return scale.of_value(total, target) if self.metric_type == "Value" else scale.of_average(total, target)


@frozen(field_transformer=camel)
class HpaConfig:
    """What `advanced` says of the HPA that KEDA makes."""

    behavior: Behavior | None = None
    name: str = ""


@frozen(field_transformer=camel)
class Advanced:
    """The `advanced` of a ScaledObject; its scalingModifiers are not simulated."""

    horizontal_pod_autoscaler_config: HpaConfig = field(factory=HpaConfig)
    restore_to_original_replica_count: bool = False


@define
class _Watched:
    """A trigger, what its last poll gave, and how often in a row the HPA has asked for its metric in vain."""

    trigger: Trigger
    value: float | MetricError = 0.0
    failures: int = 0

    def poll(self, pool: PoolView, held: int) -> None:
        self.value = self._read(pool, held)

    def _read(self, pool: PoolView, held: int) -> float | MetricError:
        try:
            return self.trigger.query.read(pool, held)
        except MetricError as error:
            return error

    @property
    def is_active(self) -> bool:
        return isinstance(self.value, float) and self.trigger.is_active(self.value)

    def reading(self, pool: PoolView, held: int, fallback: Fallback | None) -> Reading:
        """What the HPA sees of it: the query is asked again, unless metrics are cached, and failures count here
        (pkg/scaling/scale_handler.go)."""
        value = self.value if self.trigger.use_cached_metrics else self._read(pool, held)
        self.failures = self.failures + 1 if isinstance(value, MetricError) else 0

        def wish(scale: Scale) -> Wish:
            if not isinstance(value, MetricError):
                return self.trigger.wish(scale, value)
            if fallback is None:
                raise value
            ready = sum(pod.ready for pod in scale.pods) if self.trigger.metric_type == "Value" else None
            told = fallback.metric(self.trigger.threshold, self.failures, scale.replicas, ready)
            return self.trigger.wish(scale, told / _MILLI)

        return wish


@define(field_transformer=camel)
class Keda:
    """Active triggers raise from 0, idle ones end at 0 after `cooldownPeriod`, if `minReplicaCount` or
    `idleReplicaCount` is 0; an HPA does the rest, every 15 seconds on its own, with a minimum of 1 or more.

    Triggers are of type prometheus, with queries such as sum(vllm:num_requests_waiting) or of the requests that the
    gateway holds (inference_extension_flow_control_queue_size), which alone are there at 0 replicas.
    """

    source: ClassVar[str] = "KEDA 2.20.1, pkg/scaling/executor and pkg/fallback (August 2026)"
    triggers: Sequence[Trigger] = field(validator=min_len(1))
    polling_interval: int = field(default=30, validator=gt(0))
    cooldown_period: int = field(default=300, validator=ge(0))
    initial_cooldown_period: int = field(default=0, validator=ge(0))
    idle_replica_count: int | None = field(default=None, validator=optional(ge(0)))
    min_replica_count: int = field(default=0, validator=ge(0))
    max_replica_count: int = field(default=100, validator=gt(0))
    fallback: Fallback | None = None
    advanced: Advanced = field(factory=Advanced)
    scale_target_ref: Mapping[str, Any] | None = None
    _controller: Controller = field(init=False)
    _watched: list[_Watched] = field(init=False)
    _times: dict[str, float] = field(factory=dict, init=False)  # of the first look, the last poll and sync, of activity

    def __attrs_post_init__(self) -> None:
        if self.min_replica_count > self.max_replica_count:
            raise ValueError(f"minReplicaCount {self.min_replica_count} is above maxReplicaCount"
                             f" {self.max_replica_count}")
        if self.idle_replica_count is not None and self.idle_replica_count >= self.min_replica_count:
            raise ValueError(f"idleReplicaCount {self.idle_replica_count} must be below minReplicaCount"
                             f" {self.min_replica_count}")
        if self.idle_replica_count:
            raise ValueError(f"idleReplicaCount {self.idle_replica_count} does not last: the HPA raises it to"
                             f" minReplicaCount {self.min_replica_count} at once; only 0 does, as KEDA says")
        self._controller = Controller(max(1, self.min_replica_count), self.max_replica_count,
                                      self.advanced.horizontal_pod_autoscaler_config.behavior)
        self._watched = [_Watched(trigger) for trigger in self.triggers]

    @property
    def interval(self) -> float:
        """Polls and the HPA's looks, in seconds, fall on multiples of it."""
        return float(gcd(self.polling_interval, int(SYNC)))

    @property
    def min_replicas(self) -> int:
        """The fewest that it asks for."""
        return self.min_replica_count if self.idle_replica_count is None else self.idle_replica_count

    def decide(self, seen: Observation) -> Decision | None:
        name, pool = only_pool(seen, "keda")
        self._times.setdefault("created", seen.now)
        replicas, why = pool.wanted, ""
        if self._is_due("poll", self.polling_interval, seen.now):
            replicas, why = self._poll(pool, seen)
        if self._is_due("sync", SYNC, seen.now) and replicas == pool.wanted:
            readings = [watched.reading(pool, seen.held, self.fallback) for watched in self._watched]
            outcome = self._controller.reconcile(Scale(replicas, pods_of(pool)), readings, seen.now)
            replicas, why = outcome.replicas, words(outcome)
        return None if replicas == pool.wanted else Decision({name: replicas}, why)

    def _poll(self, pool: PoolView, seen: Observation) -> tuple[int, str]:
        for watched in self._watched:
            watched.poll(pool, seen.held)
        active = any(watched.is_active for watched in self._watched)
        last = self._times.get("active")
        poll = Poll(active, any(isinstance(watched.value, MetricError) for watched in self._watched),
                    None if last is None else seen.now - last, seen.now - self._times["created"])
        if active:
            self._times["active"] = seen.now
        limits = Limits(self.min_replica_count, self.idle_replica_count, self.cooldown_period,
                        self.initial_cooldown_period, self.fallback)
        return limits.after(poll, pool.wanted), "its triggers are active" if active else "its triggers are idle"

    def _is_due(self, what: str, period: float, now: float) -> bool:
        if what in self._times and now - self._times[what] < period:
            return False
        self._times[what] = now
        return True
