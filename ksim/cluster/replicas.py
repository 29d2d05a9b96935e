"""The life of a pool's replicas: they start, are ready, drain, and are gone, as an autoscaler asks.

Places are made for as many as there may ever be.  One that starts has GPUs of its own from its first second on, and an
empty cache; one that drains gets no further request, and goes when those that it has are over.  Which one goes is
Kubernetes' choice: first one that is not ready yet, then the one that has been ready for the shortest time
(pkg/controller/controller_utils.go, ActivePodsWithRanks).
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy
from attrs import define, field

__all__ = ["DRAINING", "GONE", "READY", "STARTING", "Replica", "ScaledPool"]

STARTING, READY, DRAINING, GONE = "starting", "ready", "draining", "gone"


@define(eq=False)
class Replica:
    """A place for replica `number` of a pool, with its `engines`; `life` has the times at which its state changed."""

    number: int
    engines: tuple[int, ...]
    life: list[tuple[float, str]]
    #: Requests on their way through it.
    under_way: int = field(default=0, init=False)

    @property
    def state(self) -> str:
        return self.life[-1][1]

    @property
    def since(self) -> float:
        """When its state began."""
        return self.life[-1][0]


@define(eq=False)
class ScaledPool:
    """The `replicas` of the pool called `name`, of which so many are `wanted`.

    `start_up` makes a process that lasts as long as a replica takes to start; `changed` is told of each change.
    """

    env: simpy.Environment
    name: str
    replicas: Sequence[Replica]
    start_up: Callable[[Replica], Generator[simpy.Event, Any, None]]
    changed: Callable[[Replica], None]
    wanted: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.wanted = len(self.those(READY))

    def those(self, *states: str) -> list[Replica]:
        """The replicas in any of *states*, in the order of their numbers."""
        return [replica for replica in self.replicas if replica.state in states]

    @property
    def pending(self) -> int:
        """How many of those wanted have no place."""
        return max(0, self.wanted - len(self.those(STARTING, READY)))

    def scale(self, wanted: int) -> None:
        """Have *wanted* replicas that start or are ready, as far as there are places: others are pending.

        One that needs the place of a replica that drains starts when that one is gone.
        """
        self.wanted = wanted
        living = self.those(STARTING, READY)
        for replica in self.those(GONE)[:max(0, wanted - len(living))]:
            self._change(replica, STARTING)
            self.env.process(self._start(replica, replica.life[-1]))
        living.sort(key=lambda replica: (replica.state == READY, -replica.since, -replica.number))
        for replica in living[:max(0, len(living) - wanted)]:
            self._change(replica, DRAINING if replica.under_way else GONE)

    def enter(self, replica: Replica) -> None:
        """A request is sent to *replica*."""
        replica.under_way += 1

    def leave(self, replica: Replica) -> None:
        """A request of *replica* is over."""
        replica.under_way -= 1
        if replica.state == DRAINING and not replica.under_way:
            self._change(replica, GONE)
            self.scale(self.wanted)

    def _start(self, replica: Replica, began: tuple[float, str]) -> Generator[simpy.Event, Any, None]:
        yield from self.start_up(replica)
        if replica.life[-1] is began:  # nobody has changed their mind
            self._change(replica, READY)

    def _change(self, replica: Replica, state: str) -> None:
        replica.life.append((self.env.now, state))
        self.changed(replica)
