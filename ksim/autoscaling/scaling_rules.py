"""How fast an HPA may follow its metrics: windows over past wishes, and limits on changes in a period.

Rules are those of pkg/controller/podautoscaler/horizontal.go, Kubernetes 1.23 and later.  A `Behavior` that is empty is
not the same as none: without one, an older pair of rules holds.
"""

from collections.abc import Sequence
from math import ceil

from attrs import define, field, frozen
from attrs.validators import and_, ge, gt, in_, instance_of, le, min_len, optional

from ksim.foundation.units import camel, optional_quantity

#: Seconds of --horizontal-pod-autoscaler-downscale-stabilization.
DOWN_WINDOW = 300.0
#: The longest window and period that Kubernetes takes, in seconds.
_LONGEST_WINDOW, _LONGEST_PERIOD = 3600, 1800


@frozen(field_transformer=camel)
class ScalingPolicy:
    """So many `Pods`, or `Percent` of those at the start, in so many seconds."""

    type: str = field(validator=in_(("Pods", "Percent")))
    value: int = field(validator=gt(0))
    period_seconds: int = field(validator=(gt(0), le(_LONGEST_PERIOD)))


@frozen(field_transformer=camel)
class ScalingRules:
    """The rules of one direction, as `behavior.scaleUp` has them; what is None has Kubernetes' default."""

    stabilization_window_seconds: int | None = field(default=None, validator=optional(and_(ge(0), le(_LONGEST_WINDOW))))
    select_policy: str = field(default="Max", validator=in_(("Max", "Min", "Disabled")))
    policies: Sequence[ScalingPolicy] | None = field(default=None, validator=optional(min_len(1)))
    tolerance: float | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))


_UP = (ScalingPolicy("Pods", 4, 15), ScalingPolicy("Percent", 100, 15))
_DOWN = (ScalingPolicy("Percent", 100, 15),)


@frozen(field_transformer=camel)
class Behavior:
    """The `behavior` of an HPA."""

    scale_up: ScalingRules = field(factory=ScalingRules, validator=instance_of(ScalingRules))
    scale_down: ScalingRules = field(factory=ScalingRules, validator=instance_of(ScalingRules))

    @property
    def up_window(self) -> float:
        window = self.scale_up.stabilization_window_seconds
        return 0.0 if window is None else window

    @property
    def down_window(self) -> float:
        window = self.scale_down.stabilization_window_seconds
        return DOWN_WINDOW if window is None else window

    @property
    def up_policies(self) -> Sequence[ScalingPolicy]:
        return self.scale_up.policies or _UP

    @property
    def down_policies(self) -> Sequence[ScalingPolicy]:
        return self.scale_down.policies or _DOWN


@define
class Sample:
    """Replicas at a time: a past wish, or by how many a size has changed."""

    replicas: int
    at: float


def remember(samples: list[Sample], new: Sample, is_old: Sequence[bool]) -> None:
    """Put *new* in the place of the last of *samples* that is old, or behind them: the list stays short."""
    old = [index for index, too_old in enumerate(is_old) if too_old]
    if old:
        samples[old[-1]] = new
    else:
        samples.append(new)


def plain_window(wishes: list[Sample], wish: int, now: float) -> int:
    """The highest wish of the window for going down, which counts in both directions; *wish* is remembered.

    A wish of 300 s ago is past: there, its exact second is included, which no clock hits.
    """
    old = [sample.at <= now - DOWN_WINDOW for sample in wishes]
    highest = max([wish, *(sample.replicas for sample, too_old in zip(wishes, old, strict=True) if not too_old)])
    remember(wishes, Sample(wish, now), old)
    return highest


def window(wishes: list[Sample], behavior: Behavior, current: int, wish: int, now: float) -> int:
    """The *current* size, brought between the lowest wish of the window up and the highest of the one down.

    Before Kubernetes 1.23 it was one of the two, by the direction of the wish, so that a fall could raise replicas.
    """
    up, down = now - behavior.up_window, now - behavior.down_window
    lowest = min([wish, *(sample.replicas for sample in wishes if sample.at > up)])
    highest = max([wish, *(sample.replicas for sample in wishes if sample.at > down)])
    remember(wishes, Sample(wish, now), [sample.at < up and sample.at < down for sample in wishes])
    return min(max(current, lowest), highest)


def changed(events: Sequence[Sample], period: float, now: float) -> int:
    """By how many replicas a size has changed in the last *period*."""
    return sum(event.replicas for event in events if event.at > now - period)


@define
class Rates:
    """The changes of a size in each direction, and the limits that policies set to the next ones.

    Changes of the other direction do not make room: a load that flaps climbs where ups may be larger than downs.
    """

    behavior: Behavior
    ups: list[Sample] = field(factory=list)
    downs: list[Sample] = field(factory=list)

    def record(self, before: int, after: int, now: float) -> None:
        """A size has changed."""
        if after != before:
            events = self.ups if after > before else self.downs
            policies = self.behavior.up_policies if after > before else self.behavior.down_policies
            longest = max(policy.period_seconds for policy in policies)
            remember(events, Sample(abs(after - before), now), [event.at < now - longest for event in events])

    def most(self, current: int, now: float) -> int:
        """The most replicas that may be asked for from *current*."""
        rules = self.behavior.scale_up
        if rules.select_policy == "Disabled":
            return current
        limits = [self._up(policy, current, now) for policy in self.behavior.up_policies]
        return max(current, min(limits) if rules.select_policy == "Min" else max(limits))

    def _up(self, policy: ScalingPolicy, current: int, now: float) -> int:
        start = current - changed(self.ups, policy.period_seconds, now)
        # Rounded up, or a small percentage of few replicas would never be one.
        return start + policy.value if policy.type == "Pods" else ceil(start * (1 + policy.value / 100))

    def least(self, current: int, now: float) -> int:
        """The fewest."""
        rules = self.behavior.scale_down
        if rules.select_policy == "Disabled":
            return current
        limits = [self._down(policy, current, now) for policy in self.behavior.down_policies]
        # `Min` is the smallest change, so the largest size.
        return min(current, max(limits) if rules.select_policy == "Min" else min(limits))

    def _down(self, policy: ScalingPolicy, current: int, now: float) -> int:
        start = current + changed(self.downs, policy.period_seconds, now)
        return start - policy.value if policy.type == "Pods" else int(start * (1 - policy.value / 100))


def plain_most(current: int) -> int:
    """The most replicas without a behavior: twice as many, and 4 at least; nothing limits a fall but its window."""
    return max(2 * current, 4)
