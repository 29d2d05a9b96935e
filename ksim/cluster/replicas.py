"""The life of a pool's replicas: they start, are ready, drain, and are gone, as an autoscaler or an update asks.

Places are made for as many as there may ever be.  One that starts has GPUs of its own from its first second on, and an
empty cache; one that drains gets no further request, and goes when those that it has are over, or are cut off.  Which
one goes is Kubernetes' choice: first one that is not ready yet, then the one that has been ready for the shortest time
(pkg/controller/controller_utils.go, ActivePodsWithRanks).  An update replaces all that are there when it begins, as a
Deployment does (pkg/controller/deployment/rolling.go).  Where nodes are drained, none starts, and those that are there
are evicted as far as their pool's disruption budget allows.

A pool may keep some warm: they sleep beside those that serve, a start takes one of them first, and another one comes
into its place.
"""

from collections.abc import Callable, Generator, Iterable, Sequence, Set
from functools import partial
from math import inf, isfinite
from typing import Any

import simpy
from attrs import define, field

from ksim.autoscaling.kubernetes import DisruptionBudget, RollingUpdate, Termination
from ksim.engine.loop_times import Horizon
from ksim.specs.pools import DisruptionBudgetSettings, NodeDrain

__all__ = ["DRAINING", "GONE", "READY", "STARTING", "WARM", "Drains", "Replica", "ScaledPool"]

STARTING, READY, DRAINING, WARM, GONE = "starting", "ready", "draining", "warm", "gone"
#: Seconds after which `kubectl drain` asks again for an eviction that was refused
#: (staging/src/k8s.io/kubectl/pkg/drain/drain.go).
RETRY = 5.0
#: The states of those that are evicted from a node.
_EVICTED = (STARTING, READY, WARM)


@define(eq=False)
class Replica:
    """A place for replica `number` of a pool, with its `engines`; `life` has the times at which its state changed."""

    number: int
    engines: tuple[int, ...]
    life: list[tuple[float, str]]
    #: Those of the fleet that its engines lie on.
    nodes: frozenset[int] = frozenset()
    #: Requests on their way through it.
    under_way: int = field(default=0, init=False)
    #: Whether an update has yet to replace it.
    outdated: bool = field(default=False, init=False)
    #: What it does until it is ready, or sleeps: a warm one that does nothing sleeps.
    work: object | None = field(default=None, init=False)
    #: Others that need its GPUs, of which one at a time may be there, and their pools.
    rivals: "Sequence[tuple[ScaledPool, Replica]]" = field(default=(), init=False)

    @property
    def state(self) -> str:
        return self.life[-1][1]

    @property
    def since(self) -> float:
        """When its state began."""
        return self.life[-1][0]

    @property
    def free(self) -> bool:
        """Whether it is gone, and so are all that need its GPUs."""
        return self.state == GONE and all(other.state == GONE for _, other in self.rivals)


@define(eq=False)
class ScaledPool:
    """The `replicas` of the pool called `name`, of which so many are `wanted`.

    `start_up` makes a process that lasts as long as a replica takes to start; `changed` is told of each change.
    `cut_off` takes the requests away that a replica has when its `termination` says so.  None starts on `cordoned`
    nodes, and evictions keep to the `budget`.  It keeps so many `warm`, each of which falls asleep and wakes as
    `fall_asleep` and `wake_up` say.
    """

    env: simpy.Environment
    name: str
    replicas: Sequence[Replica]
    start_up: Callable[[Replica], Iterable[simpy.Event]]
    changed: Callable[[Replica], None]
    cut_off: Callable[[Replica], None] = lambda replica: None
    termination: Termination = field(default=Termination(grace=inf), kw_only=True)
    budget: DisruptionBudgetSettings | None = field(default=None, kw_only=True)
    cordoned: Set[int] = field(default=frozenset(), kw_only=True)
    warm: int = field(default=0, kw_only=True)
    fall_asleep: Callable[[Replica], Iterable[simpy.Event]] = field(default=lambda replica: (), kw_only=True)
    wake_up: Callable[[Replica], Iterable[simpy.Event]] = field(default=lambda replica: (), kw_only=True)
    wanted: int = field(init=False)
    _rules: tuple[int | str, int | str] = field(default=(0, 0), init=False)

    def __attrs_post_init__(self) -> None:
        self.wanted = len(self.those(READY))

    def those(self, *states: str) -> list[Replica]:
        """The replicas in any of *states*, in the order of their numbers."""
        return [replica for replica in self.replicas if replica.state in states]

    @property
    def pending(self) -> int:
        """How many of those wanted have no place."""
        return max(0, self.wanted - len(self.those(STARTING, READY)))

    @property
    def cold(self) -> int:
        """How many are to be warm, and are not."""
        return self.warm - len(self.those(WARM))

    def scale(self, wanted: int) -> None:
        """Have *wanted* replicas that start or are ready, as far as there are places: others are pending.

        One that needs the place of a replica that drains starts when that one is gone.
        """
        self.wanted = wanted
        self.go_on()

    def update(self, max_surge: int | str, max_unavailable: int | str) -> None:
        """Replace all replicas that there are, with so many more at a time, and so many fewer that are ready."""
        self._rules = max_surge, max_unavailable
        for replica in self.those(STARTING, READY):
            replica.outdated = True
        for replica in self.those(WARM):
            self._change(replica, GONE)
        self.go_on()

    def evict(self, replica: Replica) -> None:
        """Let *replica*, which starts, is ready or is warm, go if the budget allows it, and have another one in its
        place."""
        if self.budget is not None:
            budget = DisruptionBudget(self.wanted, self.budget)
            if not budget.allows(len(self.those(READY)), replica.state == READY):
                return
        replica.outdated = True  # it goes for good
        self._drain(replica)
        self.go_on()

    def enter(self, replica: Replica) -> None:
        """A request is sent to *replica*."""
        replica.under_way += 1

    def leave(self, replica: Replica) -> None:
        """A request of *replica* is over, or cut off."""
        replica.under_way -= 1
        self._go_if_done(replica)

    def go_on(self) -> None:
        """Start and end replicas until as many are there as should be now."""
        living = self.those(STARTING, READY)
        old = [replica for replica in living if replica.outdated]
        surge, missing = self._allowed() if old else (0, 0)
        new = len(living) - len(old)
        room = min(self.wanted - new, self.wanted + surge - len(living))
        started = [*self._warm_first(), *filter(self._may_start, self.replicas)][:max(0, room)]
        for replica in started:
            self._begin(replica, STARTING)
        living += started
        waiting = sum(replica.state == STARTING and not replica.outdated for replica in living) if old else 0
        spare = len(living) - (self.wanted - missing) - waiting
        living.sort(key=lambda replica: (not replica.outdated, replica.state == READY, -replica.since,
                                         -replica.number))
        ending = living[:max(0, min(spare, len(old)) if old else spare)]
        for replica in ending:
            if replica.state in (STARTING, READY):  # the end of another one may have changed it
                self._drain(replica)
        if old and (ending or started):
            self.go_on()
        for replica in [*filter(self._may_start, self.replicas)][:max(0, self.cold)]:
            self._begin(replica, WARM)
        if self.pending:
            self._claim()

    def _claim(self) -> None:
        """Have warm replicas of other pools go whose GPUs a pending one needs: who waited for these is told then."""
        for replica in self.replicas:
            warm = [(pool, other) for pool, other in replica.rivals if other.state == WARM]
            there = [other for _, other in replica.rivals if other.state not in (WARM, GONE)]
            if self.pending and warm and not there and replica.state == GONE and not replica.nodes & self.cordoned:
                for pool, other in warm:
                    pool._change(other, GONE)

    def _warm_first(self) -> list[Replica]:
        """Warm replicas: those that sleep, and then those that come, the one that has come for longest first."""
        warm = [replica for replica in self.those(WARM) if not replica.nodes & self.cordoned]
        return sorted(warm, key=lambda replica: (replica.work is not None, replica.since))

    def _may_start(self, replica: Replica) -> bool:
        return replica.free and not replica.nodes & self.cordoned

    def _allowed(self) -> tuple[int, int]:
        """How many replicas there may be beyond those wanted, and how many of those may be missing."""
        rules = RollingUpdate(self.wanted, *self._rules)
        return rules.surge, rules.unavailable

    def _begin(self, replica: Replica, state: str) -> None:
        """Have *replica* come to serve or to be warm: one that sleeps wakes, and one on its way goes on."""
        asleep = replica.state == WARM
        replica.outdated = False
        self._change(replica, state)
        if replica.work is None:
            self._set_to_work(replica, () if asleep else self.start_up(replica), asleep)

    def _set_to_work(self, replica: Replica, start: Iterable[simpy.Event], asleep: bool) -> None:
        replica.work = work = object()
        self.env.process(self._work(replica, work, start, asleep))

    def _work(self, replica: Replica, work: object, start: Iterable[simpy.Event], asleep: bool
              ) -> Generator[simpy.Event, Any, None]:
        """Have *replica* start, and then wake if it is to serve or fall asleep if it is to be warm, until it is there
        or has other *work*.  What has begun is ended before anything else."""
        yield from start
        while replica.work is work and asleep == (replica.state == STARTING):
            yield from self.wake_up(replica) if asleep else self.fall_asleep(replica)
            asleep = not asleep
        if replica.work is work:
            replica.work = None
            if replica.state == STARTING:
                self._change(replica, READY)
                self.go_on()

    def _drain(self, replica: Replica) -> None:
        """Send *replica* no more, and let it go when its requests are over, or its grace period is."""
        if replica.state in (STARTING, WARM) or not (replica.under_way or self.termination.sigterm):
            self._retire(replica)
            return
        self._change(replica, DRAINING)
        if self.termination.sigterm or isfinite(self.termination.limit):
            self.env.process(self._end(replica, replica.life[-1]))

    def _end(self, replica: Replica, began: tuple[float, str]) -> Generator[simpy.Event, Any, None]:
        sigterm = self.termination.sigterm or 0.0
        yield self.env.timeout(sigterm)
        self._go_if_done(replica)
        if isfinite(self.termination.limit):
            yield self.env.timeout(self.termination.limit - sigterm)
            if replica.life[-1] is began:
                self.cut_off(replica)

    def _go_if_done(self, replica: Replica) -> None:
        """Let *replica* go if it drains, has no request, and its preStop hook has ended."""
        ends = replica.since + (self.termination.sigterm or 0.0)
        if replica.state == DRAINING and not replica.under_way and self.env.now >= ends:
            self._retire(replica)
            self.go_on()

    def _retire(self, replica: Replica) -> None:
        """Have *replica*, which serves nobody, sleep if too few are warm, and else be gone."""
        sleeps = self.cold > 0 and not replica.outdated and not replica.nodes & self.cordoned
        self._change(replica, WARM if sleeps else GONE)
        if sleeps and replica.work is None:
            self._set_to_work(replica, (), asleep=False)

    def _change(self, replica: Replica, state: str) -> None:
        if state == GONE:
            replica.work = None
        replica.life.append((self.env.now, state))
        self.changed(replica)


@define(eq=False)
class Drains:
    """Empties the nodes of a fleet of all `pools` while they serve, until all is `over`; `cordoned` are those by now.
    """

    pools: Sequence[ScaledPool]
    over: Callable[[], bool]
    cordoned: set[int] = field(factory=set)

    def begin(self, drains: Sequence[NodeDrain], env: Horizon) -> None:
        """Have all *drains* come when it is time.

        At one time, nodes that are back come first, as they may be drained anew, and all others are cordoned before
        anything is evicted, or that would start there.
        """
        for drain in drains:
            if isfinite(drain.end):
                env.call_at(drain.end, partial(self._uncordon, drain))
        for drain in drains:
            env.call_at(drain.at, partial(self.cordoned.update, drain.nodes))
        for drain in drains:
            env.call_at(drain.at, partial(self._begin, drain, env))

    def _uncordon(self, drain: NodeDrain) -> None:
        self.cordoned.difference_update(drain.nodes)
        if not self.over():
            for pool in self.pools:
                pool.go_on()

    def _begin(self, drain: NodeDrain, env: Horizon) -> None:
        env.process(self._evict(drain, env))

    def _evict(self, drain: NodeDrain, env: Horizon) -> Generator[simpy.Event, Any, None]:
        """Ask for the end of all replicas on the nodes of *drain*, again and again until none is left or it ends."""
        nodes = frozenset(drain.nodes)
        while env.now < drain.end and not self.over():
            for pool, replica in self._on(nodes):
                if replica.state in _EVICTED:  # the end of another one may have changed it
                    pool.evict(replica)
            if not self._on(nodes):
                return
            yield env.timeout(RETRY)

    def _on(self, nodes: Set[int]) -> list[tuple[ScaledPool, Replica]]:
        return [(pool, replica) for pool in self.pools for replica in pool.those(*_EVICTED)
                if replica.nodes & nodes]
