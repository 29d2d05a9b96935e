"""The pools of a fleet: what each is for, how large it is, how its replicas end, and which nodes are drained."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable, ge, gt, in_, le, min_len, optional

from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import Seconds, optional_quantity, quantity
from ksim.specs.hardware import MOST, Gpu
from ksim.specs.settings import EngineSettings

__all__ = ["ROLES", "DisruptionBudgetSettings", "Lifecycle", "NodeDrain", "PoolSettings", "RollingUpdateSettings",
           "WarmPoolSettings", "whole"]

#: What the engines of a pool do: prefill for others, decode what others have prefilled, or serve requests alone.
ROLES = ("prefill", "decode", "both")
#: What replicas of a warm pool may be: modes of a start (ksim/specs/startup.py) from what is there already.
WARM_MODES = ("sleep_1", "sleep_2", "snapshot")


def _as_given(value: int | str) -> int | str:
    """A number, or a percentage of what is not known yet."""
    return value


def whole(value: int | str, replicas: int, up: bool) -> int:
    """A number of pods, or "25%" of *replicas*, rounded *up* or down.

    Raises ConfigError for what is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
        scaled = int(value[:-1]) * replicas
        return -(-scaled // 100) if up else scaled // 100
    raise ConfigError(f"{value!r}", "is neither a number of pods nor a percentage such as '25%'")


def _pods(instance: object, attribute: "Attribute[Any]", value: int | str) -> None:
    """Raise ValueError for what is neither a number of replicas nor a percentage of them."""
    try:
        whole(value, 1, up=True)
    except ConfigError as error:
        raise ValueError(f"{attribute.name!r}: {' '.join(error.args)}") from None


@frozen
class RollingUpdateSettings:
    """An update of a pool to another version, which replaces its replicas as a Deployment of Kubernetes does."""

    at: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(ge(0)))
    """When it begins. Unit: s. Default: never. Example: "600 s"."""
    max_surge: int | str = field(default="25%", converter=_as_given, validator=_pods)
    """Replicas beyond those wanted while it lasts; a percentage of them is rounded up. Unit: replicas, or %."""
    max_unavailable: int | str = field(default="25%", converter=_as_given, validator=_pods)
    """Replicas of those wanted that may not be ready while it lasts; a percentage is rounded down. Unit: replicas, or
    %."""


def _as_given_or_none(value: int | str | None) -> int | str | None:
    """The same, or nothing."""
    return value


@frozen
class DisruptionBudgetSettings:
    """A PodDisruptionBudget of Kubernetes: how many replicas of a pool are ready whatever is evicted; one of both.

    A percentage is of the replicas that are wanted, and rounded up in both.
    """

    min_available: int | str | None = field(default=None, converter=_as_given_or_none, validator=optional(_pods))
    """Replicas that stay ready. Unit: replicas, or %. Default: none. Example: 1."""
    max_unavailable: int | str | None = field(default=None, converter=_as_given_or_none, validator=optional(_pods))
    """Replicas of those wanted that may not be ready. Unit: replicas, or %. Default: none. Example: "25%"."""

    def __attrs_post_init__(self) -> None:
        if (self.min_available is None) == (self.max_unavailable is None):
            raise ValueError("a disruption budget needs one of min_available and max_unavailable")


@frozen
class NodeDrain:
    """Nodes that are emptied for maintenance, as `kubectl drain` does: no replica starts there, and all are evicted."""

    at: Seconds = field(converter=quantity, validator=ge(0))
    """When they are cordoned, and evictions begin. Unit: s. Example: "600 s"."""
    nodes: tuple[int, ...] = field(validator=(min_len(1), deep_iterable(ge(0))))
    """Their numbers in the fleet, whose nodes are numbered from 0 on in the order of the pools that lie on them. Unit:
    none. Example: [0]."""
    for_: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    """How long until replicas may start there again. Unit: s. Default: they never may. Example: "900 s"."""

    @property
    def end(self) -> float:
        """When its nodes are back."""
        return inf if self.for_ is None else self.at + self.for_


@frozen
class Lifecycle:
    """How replicas end: when an autoscaler has too many, when they are updated, or when their node is drained."""

    termination_grace_period: Seconds | None = field(default=None, converter=optional_quantity,
                                                     validator=optional(ge(0)))
    """How long a replica that is to go may serve the requests that it has, `pre_stop` included; those that are left are
    cut off. Unit: s. Default: until the last has ended. Source: Kubernetes, whose default is 30 s. Example: "30 s"."""
    pre_stop: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """How long its preStop hook sleeps: it does not go before. Unit: s. Example: "5 s"."""
    migration_limit: int = field(default=0, validator=ge(0))
    """How often a request that is cut off may go on at another replica, which computes its prompt and the tokens that
    its user has again; after that, and with 0 at once, its client sends it again as `workload.retries` says, or it
    fails. Unit: moves. Source: Dynamo's --migration-limit."""
    rolling_update: RollingUpdateSettings = RollingUpdateSettings()
    """The update of its replicas to another version."""
    disruption_budget: DisruptionBudgetSettings | None = None
    """How many replicas stay ready while nodes are drained. Default: all may be evicted at once. Example:
    {min_available = 1}."""

    def __attrs_post_init__(self) -> None:
        if self.termination_grace_period is None and self.migration_limit:
            raise ValueError("migration_limit is of requests that are cut off, and none is without"
                             " termination_grace_period; set that, too")


@frozen
class WarmPoolSettings:
    """Replicas of a pool that sleep on GPUs of their own beside those that serve, until a start takes one."""

    replicas: int = field(default=1, validator=(gt(0), le(MOST)))
    """How many, as far as the pool has places that nobody else needs. Unit: replicas."""
    mode: str = field(default="sleep_1", validator=in_(WARM_MODES))
    """What they are, and so how long they take to wake, by the modes of `startup`. One that comes into the warm pool
    takes as long as a start."""


@frozen
class PoolSettings:
    """What a pool is for, how large it is, and where it differs from the scenario, whose keys count where it has none.
    """

    role: str = field(validator=in_(ROLES))
    """What its engines do: prefill prompts for engines of other pools, decode them, or serve requests alone.
    Example: "both"."""
    replicas: int = field(default=1, validator=(ge(0), le(MOST)))
    """Copies of its deployment, each of `data_parallel_size` engines; with an `autoscaler`, those that are ready at the
    start. Unit: replicas."""
    max_replicas: int | None = field(default=None, validator=optional((gt(0), le(MOST))))
    """The most that an autoscaler may have; there are GPUs for them. Unit: replicas. Default: replicas. Example: 8."""
    warm_pool: WarmPoolSettings | None = None
    """Replicas that sleep, of which a start takes one first; they are some of `max_replicas`. Default: none. Example:
    {replicas = 2}."""
    model: str | None = None
    """What it serves: requests for that model. Default: the scenario's. Names: models. Example: "qwen2.5-7b"."""
    autoscaler: Choice | None = None
    """What scales this pool alone. Default: the scenario's, for all pools. Names: autoscaling. Example: "hpa"."""
    lifecycle: Lifecycle | None = None
    """How its replicas end. Default: as the scenario says. Example: {termination_grace_period = "30 s"}."""
    gpu: Annotated[str | Choice | None, Gpu] = None
    """Its GPU, in the GPU's usual system, or a table as for the scenario's. Default: the scenario's `gpu` and `system`.
    Names: gpus. Example: "h100"."""
    system: str | None = None
    """Its system. Default: the usual one of `gpu`, or the scenario's. Names: systems. Example: "hgx-h200"."""
    nodes: int | None = field(default=None, validator=optional((gt(0), le(MOST))))
    """Nodes for this pool alone. Unit: nodes. Default: it shares the nodes of the scenario with the other pools of its
    system. Example: 2."""
    engine: str | None = None
    """Its engine release. Default: the scenario's. Names: engines. Example: "vllm-0.33"."""
    host: str | None = None
    """Its host. Default: the scenario's. Names: hosts. Example: "default"."""
    serve: Annotated[Mapping[str, Any], EngineSettings] = field(factory=dict)
    """Engine settings that differ from the scenario's `serve`. Default: none."""

    def __attrs_post_init__(self) -> None:
        if self.places < max(1, self.replicas):
            raise ValueError("replicas is 0; set max_replicas, and an autoscaler" if not self.replicas else
                             f"max_replicas is {self.places}, and there are {self.replicas} replicas at the start")
        if self.places < self.replicas + self.warm:
            raise ValueError(f"max_replicas is {self.places}, and there are {self.replicas} replicas at the start and"
                             f" {self.warm} in the warm pool")

    @property
    def warm(self) -> int:
        """The replicas of its warm pool."""
        return 0 if self.warm_pool is None else self.warm_pool.replicas

    @property
    def places(self) -> int:
        """The replicas that there are GPUs for."""
        return self.max_replicas or self.replicas
