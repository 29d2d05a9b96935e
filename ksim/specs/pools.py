"""A pool: engines of one kind in a fleet, as a scenario describes them."""

from collections.abc import Mapping
from typing import Annotated, Any

from attrs import field, frozen
from attrs.validators import gt, in_, le, optional

from ksim.foundation.config import Choice
from ksim.specs.hardware import MOST, Gpu
from ksim.specs.settings import EngineSettings

#: What the engines of a pool do: prefill for others, decode what others have prefilled, or serve requests alone.
ROLES = ("prefill", "decode", "both")


@frozen
class PoolSettings:
    """What a pool is for, how large it is, and where it differs from the scenario.

    A key that is not set is that of the scenario.
    """

    role: str = field(validator=in_(ROLES))
    """What its engines do: prefill prompts for engines of other pools, decode them, or serve requests alone.
    Example: "both"."""
    replicas: int = field(default=1, validator=(gt(0), le(MOST)))
    """Copies of its deployment, each of `data_parallel_size` engines. Unit: replicas."""
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
