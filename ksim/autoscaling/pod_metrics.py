"""From a metric to replicas, as Kubernetes' HorizontalPodAutoscaler computes it.

Values are whole thousandths, as quantities are read there.  Rules are those of pkg/controller/podautoscaler,
replica_calculator.go and metrics/utilization.go, of Kubernetes 1.33 and later.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from typing import Literal

from attrs import evolve, field, frozen

#: Of kube-controller-manager: --horizontal-pod-autoscaler-cpu-initialization-period, -initial-readiness-delay, and the
#: window over which its metrics are averaged.
CPU_INITIALIZATION, READINESS_DELAY, WINDOW = 120.0, 10.0, 60.0

Phase = Literal["running", "pending", "failed"]
#: What a pod without a metric, by its number, is taken to have.
_Fill = Callable[[int], int]


class MetricError(Exception):
    """A metric gives no wish, for the reason given: the controller would set the condition ScalingActive to false."""


@frozen
class Pod:
    """A pod of the scaled workload: `age` and `since_transition` (of its readiness) are in seconds.

    A pod whose readiness has not changed since its start has changed it then.
    """

    ready: bool = True
    phase: Phase = "running"
    terminating: bool = False
    age: float = inf
    since_transition: float | None = None

    @property
    def counts(self) -> bool:
        return not self.terminating and self.phase != "failed"

    @property
    def is_initializing(self) -> bool:
        """Whether its CPU is not looked at: it has not been ready yet, or not for a whole window after its start."""
        since = self.age if self.since_transition is None else self.since_transition
        if self.age < CPU_INITIALIZATION:
            return not self.ready or since < WINDOW
        return not self.ready and (self.since_transition is None or self.age - since < READINESS_DELAY)


@frozen
class Tolerance:
    """How far the ratio of a metric to its target may be from 1 before anything changes, for each direction."""

    up: float = 0.1
    down: float = 0.1

    def holds(self, ratio: float) -> bool:
        # Not abs(1 - ratio) <= tolerance, which 1.1 failed by a rounding before Kubernetes 1.33.
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@frozen
class Wish:
    """The replicas that a metric asks for, and its value: of a pod, of the object, or in per cent of requests."""

    replicas: int
    value: int
    raw: int | None = None


@frozen
class _Groups:
    """Pods by what is known of them: those whose metric counts, how many of those there are, and the rest."""

    values: Mapping[int, int]
    ready: int
    not_ready: Sequence[int]
    missing: Sequence[int]


def _grouped(pods: Sequence[Pod], values: Mapping[int, int], cpu: bool) -> _Groups:
    left, ready = dict(values), 0
    not_ready: list[int] = []
    missing: list[int] = []
    for index, pod in enumerate(pods):
        if not pod.counts:
            left.pop(index, None)
        elif pod.phase == "pending":
            not_ready.append(index)
        elif index not in left:
            missing.append(index)
        elif cpu and pod.is_initializing:
            not_ready.append(index)
        else:
            ready += 1
    for index in not_ready:
        left.pop(index, None)
    return _Groups(left, ready, not_ready, missing)


@frozen
class Scale:
    """What a metric is to be turned into replicas for: those asked for, the pods there are, and the tolerance."""

    replicas: int
    pods: Sequence[Pod]
    tolerance: Tolerance = field(factory=Tolerance)
    status_replicas: int | None = None

    @property
    def existing(self) -> int:
        """The replicas that exist, which may differ from those asked for."""
        return self.replicas if self.status_replicas is None else self.status_replicas

    def of_pods(self, values: Mapping[int, int], target: int, cpu: bool = False) -> Wish:
        """The wish of values by pod that should be *target* on the mean; *cpu* if they are of a resource.

        Raises MetricError where no pod has a value.
        """
        return self._rebalanced(_PlainMeans(target), values, cpu)

    def of_utilization(self, values: Mapping[int, int], requests: Mapping[int, int], target: int,
                       cpu: bool = True) -> Wish:
        """The same of use that should be *target* per cent of the pods' *requests*."""
        return self._rebalanced(_Utilization(target, requests), values, cpu)

    def of_value(self, total: int, target: int) -> Wish:
        """The wish of one value for all pods: in proportion to the *ready* ones, so that it compounds until it falls.

        From no replicas, the ratio itself, without tolerance.
        """
        ratio = _ratio(total, target)
        if not self.replicas:
            return Wish(ceil(ratio), total)
        if self.tolerance.holds(ratio):
            return Wish(self.replicas, total)
        if not self.pods:
            raise MetricError("there are no pods")
        ready = sum(pod.ready and pod.phase == "running" for pod in self.pods)
        return Wish(ceil(ratio * ready), total)

    def of_average(self, total: int, target: int) -> Wish:
        """The wish of a value that the replicas share, *target* each, whether they are ready or not."""
        existing = self.existing
        share = ceil(total / existing) if existing else total
        if existing and self.tolerance.holds(_ratio(total, target * existing)):
            return Wish(existing, share)
        return Wish(ceil(_ratio(total, target)), share)

    def _rebalanced(self, measure: "_PlainMeans | _Utilization", values: Mapping[int, int], cpu: bool) -> Wish:
        """Pods without a metric, and those not ready, are taken to have what speaks against the change."""
        if not self.pods:
            raise MetricError("there are no pods")
        groups = _grouped(self.pods, values, cpu)
        if not groups.values:
            raise MetricError("no ready pod has the metric")
        ratio, wish = measure.of(groups.values)
        rising = bool(groups.not_ready) and ratio > 1.0
        if not rising and not groups.missing:
            return evolve(wish, replicas=self.replicas if self.tolerance.holds(ratio) else ceil(ratio * groups.ready))
        assumed = dict(groups.values)
        if groups.missing and (fill := measure.fill(ratio)) is not None:
            assumed |= {index: fill(index) for index in groups.missing}
        if rising:
            assumed |= dict.fromkeys(groups.not_ready, 0)
        again, _ = measure.of(assumed)
        turned = (ratio < 1.0 < again) or (again < 1.0 < ratio)
        replicas = ceil(again * len(assumed))
        # More pods with a metric than there are replicas, as in a rolling update, must not turn the direction either.
        against = (again < 1.0 and replicas > self.replicas) or (again > 1.0 and replicas < self.replicas)
        held = self.tolerance.holds(again) or turned or against
        return evolve(wish, replicas=self.replicas if held else replicas)


def _ratio(total: float, target: float) -> float:
    return total / target if target else inf if total else 0.0


@frozen
class _PlainMeans:
    """Values that should be `target` on the mean."""

    target: int

    def of(self, values: Mapping[int, int]) -> tuple[float, Wish]:
        mean = sum(values.values()) // len(values)  # a whole number before it is divided, as there
        return _ratio(mean, self.target), Wish(0, mean)

    def fill(self, ratio: float) -> _Fill:
        return (lambda _: self.target) if ratio < 1.0 else (lambda _: 0)


@frozen
class _Utilization:
    """Use that should be `target` per cent of what pods request, of those that have both."""

    target: int
    requests: Mapping[int, int]

    def of(self, values: Mapping[int, int]) -> tuple[float, Wish]:
        known = [index for index in values if index in self.requests]
        requested = sum(self.requests[index] for index in known)
        if not requested:
            raise MetricError("no metric is of a pod that requests the resource")
        used = sum(values[index] for index in known)
        percent = used * 100 // requested
        return _ratio(percent, self.target), Wish(0, percent, used // len(known))

    def fill(self, ratio: float) -> _Fill | None:
        if ratio < 1.0:  # all that they request, or the target where that is more
            return lambda index: self.requests[index] * max(100, self.target) // 100
        return (lambda _: 0) if ratio > 1.0 else None
