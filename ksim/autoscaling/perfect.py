"""The sizes that somebody who knew the future would choose, which `ksim autoscalers` finds by simulation."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.autoscaling import Decision, Observation
from ksim.foundation.units import Seconds, quantity

__all__ = ["Perfect"]


def _check(sizes: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Raise ValueError for sizes that do not follow each other in time, or are no numbers of replicas."""
    if not sizes:
        raise ValueError("sizes is empty; `ksim autoscalers` finds those of a scenario, and writes its perfect.toml")
    for pool, steps in sizes.items():
        times = [step[0] for step in steps if len(step) == 2 and step[1] >= 0 and step[1] == int(step[1])]
        if not steps or len(times) < len(steps) or times != sorted(set(times)):
            raise ValueError(f"sizes.{pool} is no list of [seconds, replicas] in the order of time")


@define
class Perfect:
    """Asks for the last of a pool's `sizes`, each of which is [seconds, replicas], whose time has come."""

    source: ClassVar[str] = "simulated with the load that comes (ksim autoscalers)"
    sizes: Mapping[str, Sequence[Sequence[float]]] = field(factory=dict)
    interval: Seconds = field(default=1.0, converter=quantity)

    def __attrs_post_init__(self) -> None:
        _check(self.sizes)

    @property
    def max_replicas(self) -> int:
        """The most that it asks for."""
        return int(max(size for steps in self.sizes.values() for _, size in steps))

    @property
    def min_replicas(self) -> int:
        """The fewest that it asks for."""
        return int(min(size for steps in self.sizes.values() for _, size in steps))

    def decide(self, seen: Observation) -> Decision | None:
        wanted = {name: int(steps[due - 1][1]) for name, steps in self.sizes.items()
                  if name in seen.pools and (due := bisect_right([time for time, _ in steps], seen.now + 1e-9))}
        changed = {name: size for name, size in wanted.items() if size != seen.pools[name].wanted}
        return Decision(changed, "the future is known") if changed else None
