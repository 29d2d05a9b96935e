"""The stages of a deployment on its way to a scenario: Launch, Deployed, Imported; and what the user adds, Wanted."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen


@frozen
class Note:
    """A remark on a *word* of the text, which stands at *where*."""

    where: str
    word: str
    why: str


@frozen
class Launch:
    """Engines that one command starts: what a scenario says of a pool."""

    where: str
    """The place of the command, for messages: "line 3"."""
    engine: str
    """A release of ksim/data/engines."""
    model: str
    """A catalogue name, or the path of a config.json or of its folder."""
    serve: Mapping[str, Any] = field(factory=dict)
    """Settings as `serve` of a scenario has them."""
    role: str = ""
    """prefill, decode or both; empty where the command does not say."""
    replicas: int = 1
    """How often it is started."""
    name: str = ""
    """What the pool is called; empty for a name made from its role."""
    hardware: Mapping[str, Any] = field(factory=dict)
    """`gpu`, `system`, `nodes` and `host`, as far as the text says them."""
    scenario: Mapping[str, Any] = field(factory=dict)
    """Further keys of the scenario, such as `seed` or `router`."""
    free_share: float | None = None
    """TensorRT-LLM's share, for KV, of the memory that weights leave free; in place of gpu_memory_utilization."""
    ports: tuple[int, ...] = ()
    """Where it listens, by which a proxy's line names it."""
    idle: tuple[Note, ...] = ()
    """Words without an effect here."""
    remarks: tuple[Note, ...] = ()
    """Words whose meaning here differs, and what was assumed."""

    @property
    def sizes(self) -> dict[str, int]:
        """The parallel sizes that are not one."""
        keys = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        return {key: int(self.serve[key]) for key in keys if int(self.serve.get(key, 1)) > 1}

    @property
    def gpus(self) -> int:
        """The GPUs of one of these engines, and of all that it shares experts with."""
        return math.prod(self.sizes.values())


@frozen
class Deployed:
    """All that a text starts, and what it says of the whole."""

    launches: tuple[Launch, ...]
    scenario: Mapping[str, Any] = field(factory=dict)
    """Keys of the scenario beside the engines: `router`, `pair_router`, `flow_control`, `signals`."""
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()

    @classmethod
    def of(cls, parts: "Iterable[Deployed]", scenario: Mapping[str, Any]) -> "Deployed":
        """All that *parts* of a text deploy, with the keys that *scenario* has."""
        parts = [*parts]
        return cls(tuple(launch for part in parts for launch in part.launches), scenario,
                   tuple(note for part in parts for note in part.idle),
                   tuple(note for part in parts for note in part.remarks))


@frozen
class Wanted:
    """What the user says beside the text; each overrides what the text says."""

    gpu: str | None = None
    system: str | None = None
    nodes: int | None = None
    version: str | None = None
    """Release of the engine, such as "0.33.0", in place of the image's tag."""
    model: str | None = None
    """Catalogue name, or path of a config.json, in place of what the text names."""
    roles: tuple[str, ...] = ()
    """prefill, decode or both, one for each launch in order."""
    environment: Mapping[str, str] = field(factory=dict)
    """Variables that the text uses and does not set."""
    bench: str | None = None
    """The line of a benchmark client, for the workload."""


@frozen
class Imported:
    """A scenario as a table, with the notes for its header."""

    table: Mapping[str, Any]
    idle: tuple[Note, ...] = ()
    remarks: tuple[Note, ...] = ()
    filled: tuple[Note, ...] = ()
    """Settings that the text leaves to the engine and that change the answer, with the engine's values."""
