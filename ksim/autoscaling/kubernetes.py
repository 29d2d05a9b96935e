"""Rules of Kubernetes for the ends of pods: rolling updates, disruption budgets, termination."""

from math import inf

from attrs import field, frozen

from ksim.specs.pools import DisruptionBudgetSettings, whole

#: Least seconds between SIGTERM and the kill, whatever a preStop hook has left of the grace period
#: (pkg/kubelet/kuberuntime, minimumGracePeriodInSeconds).
_LEAST = 2.0


@frozen
class RollingUpdate:
    """How many pods a Deployment of `replicas` may have beyond them, and lack, while it is updated."""

    replicas: int
    max_surge: int | str = "25%"
    max_unavailable: int | str = "25%"

    @property
    def surge(self) -> int:
        """Pods beyond the replicas: a percentage is rounded up."""
        return whole(self.max_surge, self.replicas, up=True)

    @property
    def unavailable(self) -> int:
        """Pods that may be missing: a percentage is rounded down; 1 where neither would move, all at most."""
        least = whole(self.max_unavailable, self.replicas, up=False)
        return min(self.replicas, least or int(not self.surge))

    @property
    def most_pods(self) -> int:
        return self.replicas + self.surge

    @property
    def least_available(self) -> int:
        return self.replicas - self.unavailable

    @property
    def first_new(self) -> int:
        """New pods that are made at once."""
        return min(self.surge, self.replicas)

    @property
    def first_gone(self) -> int:
        """Old pods that go before a new one is ready."""
        return self.unavailable


@frozen
class DisruptionBudget:
    """A PodDisruptionBudget of `replicas`, as its `settings` say; both of its forms round a percentage up."""

    replicas: int
    settings: DisruptionBudgetSettings

    @property
    def desired_healthy(self) -> int:
        least, most_gone = self.settings.min_available, self.settings.max_unavailable
        if least is not None:
            return whole(least, self.replicas, up=True)
        assert most_gone is not None, "one of the two is there"
        return max(0, self.replicas - whole(most_gone, self.replicas, up=True))

    def evictions(self, healthy: int) -> int:
        """How many pods may be evicted while so many are *healthy*."""
        return max(0, healthy - self.desired_healthy)

    def allows(self, healthy: int, ready: bool) -> bool:
        """Whether a pod that is *ready* or is not may be evicted while so many are *healthy*.

        One that is not may go where as many as are needed are healthy, which is the policy IfHealthyBudget, and where
        none is needed as one that is ready (pkg/registry/core/pod/storage/eviction.go).
        """
        return self.evictions(healthy) > 0 or (not ready and healthy >= self.desired_healthy > 0)


@frozen
class Termination:
    """The end of a pod, in seconds from when it is asked to go: `grace` starts with the `pre_stop` hook."""

    grace: float = 30.0
    pre_stop: float = 0.0
    #: How long its requests take to end after SIGTERM.
    drain: float = field(default=inf)

    @property
    def sigterm(self) -> float | None:
        """When SIGTERM comes; None if it never does, without grace."""
        return min(self.pre_stop, self.grace) if self.grace > 0 else None

    @property
    def limit(self) -> float:
        """When it is killed: after the grace period, or a little later if its hook has used nearly all of that."""
        return 0.0 if self.sigterm is None else max(self.grace, self.sigterm + _LEAST)

    @property
    def gone(self) -> float:
        return min(self.limit, (self.sigterm or 0.0) + self.drain)

    @property
    def killed(self) -> bool:
        """Whether requests were cut off."""
        return (self.sigterm or 0.0) + self.drain > self.limit
