"""Kubernetes' HorizontalPodAutoscaler: the highest wish of its metrics, within windows, rates and limits.

Of a manifest, the keys of `spec` are options here, as they are written there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from attrs import Attribute, define, evolve, field, frozen
from attrs.validators import ge, gt, in_, min_len, optional

from ksim.autoscaling import Decision, Observation, PoolView
from ksim.autoscaling.pod_metrics import MetricError, Pod, Scale, Tolerance, Wish
from ksim.autoscaling.scaling_rules import Behavior, Rates, Sample, plain_most, plain_window, window
from ksim.autoscaling.signals import of_pods, of_whole
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import camel, optional_quantity

__all__ = ["Hpa"]

#: Seconds of --horizontal-pod-autoscaler-sync-period.
SYNC = 15.0
_MILLI = 1000


@frozen(field_transformer=camel)
class MetricTarget:
    """What a metric should be: for all (`Value`), for each replica (`AverageValue`), or in per cent of requests."""

    type: str = field(validator=in_(("Value", "AverageValue", "Utilization")))
    value: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    average_value: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    average_utilization: int | None = field(default=None, validator=optional(gt(0)))

    def __attrs_post_init__(self) -> None:
        keys = {"Value": self.value, "AverageValue": self.average_value, "Utilization": self.average_utilization}
        names = {"Value": "value", "AverageValue": "averageValue", "Utilization": "averageUtilization"}
        if keys[self.type] is None:
            raise ValueError(f"type {self.type} needs {names[self.type]}")
        if more := [names[kind] for kind, given in keys.items() if given is not None and kind != self.type]:
            raise ValueError(f"type {self.type} takes no {more[0]}")

    @property
    def milli(self) -> int:
        """The target in thousandths; per cent as they are."""
        given = {"Value": self.value, "AverageValue": self.average_value}.get(self.type)
        return self.average_utilization or 0 if given is None else round(given * _MILLI)


@frozen(field_transformer=camel)
class MetricName:
    """A metric by its name; a `selector` of series is not looked at: all are of the pool that is scaled."""

    name: str = field(validator=min_len(1))
    selector: Mapping[str, Any] | None = None


@frozen(field_transformer=camel)
class ResourceSource:
    """A resource of the pods, such as cpu; `container` where it is of one container alone."""

    name: str
    target: MetricTarget
    container: str = ""


@frozen(field_transformer=camel)
class MetricSource:
    """A metric of pods, of an object, which is described, or of neither."""

    metric: MetricName
    target: MetricTarget
    described_object: Mapping[str, Any] | None = None


#: The key that a metric of each type has, and the types of targets that it takes.
_TYPES = {"Resource": ("resource", ("Utilization", "AverageValue")),
          "ContainerResource": ("containerResource", ("Utilization", "AverageValue")),
          "Pods": ("pods", ("AverageValue",)), "Object": ("object", ("Value", "AverageValue")),
          "External": ("external", ("Value", "AverageValue"))}


@frozen(field_transformer=camel)
class MetricSpec:
    """One of the `metrics` of an HPA."""

    type: str = field(validator=in_(tuple(_TYPES)))
    resource: ResourceSource | None = None
    container_resource: ResourceSource | None = None
    pods: MetricSource | None = None
    object: MetricSource | None = None
    external: MetricSource | None = None

    def __attrs_post_init__(self) -> None:
        key, targets = _TYPES[self.type]
        given = {"resource": self.resource, "containerResource": self.container_resource, "pods": self.pods,
                 "object": self.object, "external": self.external}
        if given[key] is None:
            raise ValueError(f"type {self.type} needs {key}")
        if more := [name for name, source in given.items() if source is not None and name != key]:
            raise ValueError(f"type {self.type} takes no {more[0]}")
        if self.target.type not in targets:
            raise ValueError(f"{key}.target.type is {self.target.type}; a metric of type {self.type} takes"
                             f" {' or '.join(targets)}")

    @property
    def source(self) -> ResourceSource | MetricSource:
        found = self.resource or self.container_resource or self.pods or self.object or self.external
        assert found is not None, "a metric has the key of its type"
        return found

    @property
    def target(self) -> MetricTarget:
        return self.source.target

    @property
    def name(self) -> str:
        return self.source.metric.name if isinstance(self.source, MetricSource) else self.source.name


#: What a metric wishes of a scale; raises MetricError where it has none.
Reading = Callable[[Scale], Wish]


@frozen
class Reasons:
    """Why an HPA came to its size, in Kubernetes' words for its conditions."""

    able: str = "ReadyForNewScale"
    active: str = "ValidMetricFound"
    limited: str = ""


@frozen
class Outcome:
    """A size, the wish of the metrics before windows, rates and limits, None where they were not asked, and reasons."""

    replicas: int
    wish: int | None
    reasons: Reasons


@define
class Controller:
    """The rules of the controller for one HPA, and what it remembers of its past wishes and changes."""

    least: int
    most: int
    behavior: Behavior | None = None
    wishes: list[Sample] | None = None
    rates: Rates = field(init=False)
    #: The most replicas from so many without a behavior.
    plain_limit: Callable[[int], int] = plain_most

    def __attrs_post_init__(self) -> None:
        self.rates = Rates(self.behavior or Behavior())

    @property
    def tolerance(self) -> Tolerance:
        rules = self.behavior or Behavior()
        plain = Tolerance()
        return Tolerance(plain.up if rules.scale_up.tolerance is None else rules.scale_up.tolerance,
                         plain.down if rules.scale_down.tolerance is None else rules.scale_down.tolerance)

    def reconcile(self, scale: Scale, readings: Sequence[Reading], now: float) -> Outcome:
        """The size that *scale* should have, by what its metrics say at *now*; a change is taken to be made."""
        current = scale.replicas
        if self.wishes is None:  # the size at the first look counts as a wish
            self.wishes = [Sample(current, now)]
        if current == 0 and self.least != 0:
            return Outcome(0, None, Reasons("SucceededGetScale", "ScalingDisabled"))
        if not self.least <= current <= self.most:  # limits hold at once, without windows or rates
            replicas = min(max(current, self.least), self.most)
            self._record(current, replicas, now)
            return Outcome(replicas, None, Reasons("SucceededRescale", ""))
        try:
            wish = highest_wish(evolve(scale, tolerance=self.tolerance), readings)
        except MetricError as error:
            return Outcome(current, None, Reasons("SucceededGetScale", str(error)))
        outcome = self._limited(current, wish, now)
        self._record(current, outcome.replicas, now)
        return outcome

    def _limited(self, current: int, wish: int, now: float) -> Outcome:
        wishes = self.wishes
        assert wishes is not None, "wishes are remembered from the first look on"
        if self.behavior is None:
            stable = plain_window(wishes, wish, now)
            replicas, limited = self.plain_limits(current, stable)
        else:
            stable = window(wishes, self.behavior, current, wish, now)
            replicas, limited = self.limits(current, stable, now)
        able = "ReadyForNewScale"
        if stable != wish:
            up = self.behavior is not None and wish >= current
            able = "ScaleUpStabilized" if up else "ScaleDownStabilized"
        return Outcome(replicas, wish, Reasons(able, "ValidMetricFound", limited))

    def _record(self, before: int, after: int, now: float) -> None:
        if self.behavior is not None:
            self.rates.record(before, after, now)

    def plain_limits(self, current: int, wish: int) -> tuple[int, str]:
        limit = self.plain_limit(current)
        if wish < self.least:
            return self.least, "TooFewReplicas"
        if wish > min(limit, self.most):
            return min(limit, self.most), "ScaleUpLimit" if limit < self.most else "TooManyReplicas"
        return wish, "DesiredWithinRange"

    def limits(self, current: int, wish: int, now: float) -> tuple[int, str]:
        """*wish* within what policies, minimum and maximum allow from *current*, and which of them limits it."""
        if wish > current:
            limit = self.rates.most(current, now)
            if wish > min(limit, self.most):
                return min(limit, self.most), "ScaleUpLimit" if limit < self.most else "TooManyReplicas"
        elif wish < current:
            limit = self.rates.least(current, now)
            if wish < max(limit, self.least):
                return max(limit, self.least), "ScaleDownLimit" if limit > self.least else "TooFewReplicas"
        return wish, "DesiredWithinRange"


def highest_wish(scale: Scale, readings: Sequence[Reading]) -> int:
    """The highest wish of all metrics; raises MetricError if none has one, or some have none and the others ask for
    fewer replicas."""
    wishes: list[int] = []
    first: MetricError | None = None
    for reading in readings:
        try:
            wishes.append(reading(scale).replicas)
        except MetricError as error:
            first = first or error
    if first is not None and (not wishes or max(wishes) < scale.replicas):
        raise first
    return max(wishes)


def _metrics(_: Any, attribute: "Attribute[Any]", value: Sequence[MetricSpec]) -> None:
    for index, metric in enumerate(value):
        key = f"metrics[{index}]: "
        if isinstance(metric.source, ResourceSource):
            raise ValueError(f"{key}nobody gives the resource {metric.name!r}: of engines, only their own metrics are"
                             " simulated, such as vllm:num_requests_waiting in a metric of type Pods")
        try:
            (of_pods if metric.type == "Pods" else of_whole)(metric.name)
        except ValueError as error:
            raise ValueError(f"{key}{error}") from None


@define(field_transformer=camel)
class Hpa:
    """The wish of a metric is the replicas that bring it to its target; the highest of all metrics counts.

    Pods gives a metric of engines (vllm:num_requests_waiting), External and Object one of the whole pool or of its
    gateway (inference_pool_average_queue_size, or the sum of one of engines).  `scaleTargetRef` is not looked at.
    """

    source: ClassVar[str] = "Kubernetes 1.33 or later, pkg/controller/podautoscaler; autoscaling/v2"
    interval: ClassVar[float] = SYNC
    max_replicas: int = field(validator=gt(0))
    metrics: Sequence[MetricSpec] = field(validator=(min_len(1), _metrics))
    min_replicas: int = field(default=1, validator=ge(0))
    behavior: Behavior | None = None
    scale_target_ref: Mapping[str, Any] | None = None
    _controller: Controller = field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is above maxReplicas {self.max_replicas}")
        if not self.min_replicas and not any(metric.type in ("Object", "External") for metric in self.metrics):
            raise ValueError("minReplicas 0 needs a metric of type Object or External: without replicas, there is none"
                             " of pods")
        self._controller = Controller(self.min_replicas, self.max_replicas, self.behavior)

    def decide(self, seen: Observation) -> Decision | None:
        name, pool = only_pool(seen, "hpa")
        readings = [reading_of(metric, pool, seen.held) for metric in self.metrics]
        scale = Scale(pool.wanted, pods_of(pool))
        outcome = self._controller.reconcile(scale, readings, seen.now)
        if outcome.replicas == pool.wanted:
            return None
        return Decision({name: outcome.replicas}, words(outcome))


def only_pool(seen: Observation, what: str) -> tuple[str, PoolView]:
    """The pool that an autoscaler of one pool sees; raises ConfigError for more of them."""
    if len(seen.pools) != 1:
        raise ConfigError("autoscaler", f"{what} scales one pool, not {len(seen.pools)} ({', '.join(seen.pools)}); name"
                                        " one for each of them")
    return next(iter(seen.pools.items()))


def pods_of(pool: PoolView) -> list[Pod]:
    """The pods of *pool*, those that are ready first; what was asked for and has no node yet is pending."""
    pending = max(0, pool.wanted - len(pool.ready) - pool.starting)
    return ([Pod()] * len(pool.ready) + [Pod(ready=False)] * pool.starting
            + [Pod(ready=False, phase="pending")] * pending + [Pod(terminating=True)] * pool.draining)


def reading_of(metric: MetricSpec, pool: PoolView, held: int) -> Reading:
    """How *metric* is read of *pool*, with so many requests *held* at its gateway."""
    target = metric.target
    if metric.type == "Pods":
        values = {index: round(value * _MILLI) for index, value in enumerate(of_pods(metric.name)(pool))}
        return lambda scale: scale.of_pods(values, target.milli)
    total = round(of_whole(metric.name)(pool, held) * _MILLI)
    if target.type == "Value":
        return lambda scale: scale.of_value(total, target.milli)
    return lambda scale: scale.of_average(total, target.milli)


def words(outcome: Outcome) -> str:
    """The reason of *outcome* in words."""
    if outcome.wish is None:
        return f"outside of its limits, so {outcome.replicas} at once"
    said = f"its metrics ask for {outcome.wish}"
    if outcome.reasons.able != "ReadyForNewScale":
        said += f", {outcome.reasons.able}"
    return said if outcome.reasons.limited == "DesiredWithinRange" else f"{said}, {outcome.reasons.limited}"
