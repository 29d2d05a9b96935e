"""A scenario: all that decides a run, in one TOML file."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from attrs import evolve, field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation import catalog
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, UnknownKey
from ksim.simulation.adapter_configs import with_configs
from ksim.simulation.scenario_files import check_content, check_scenario_file, misplaced
from ksim.simulation.scenario_tables import merged, native, put, rooted
from ksim.specs.footprint import Footprint
from ksim.specs.hardware import MOST, Gpu
from ksim.specs.pools import PoolSettings
from ksim.specs.power import PowerSettings
from ksim.specs.settings import EngineSettings
from ksim.specs.signals import SignalSettings
from ksim.specs.slo import Slo
from ksim.workload.workload import Workload

#: What the name of a pool is made of: no dots, which separate keys.
_POOL_NAME = re.compile(r"[A-Za-z0-9_-]+")

#: What closes a quote or a bracket.
_CLOSING = {"{": "}", "[": "]", '"': '"', "'": "'"}
#: A name in a dotted key: no quotes, as chat programs make them, and no brackets.
_KEY_PART = re.compile(r"[\w:/@ -]+")

_ONE = {"kind": "fixed", "value": 1}
#: A workload for those who price batches of their own, because a scenario has to have one.
ANY_WORKLOAD: Mapping[str, Any] = {
    "synthetic": {"arrivals": {"process": "burst"}, "prompt": _ONE, "output": _ONE}}

#: The algorithms of NCCL, vLLM, PyTorch and DeepEP.
COLLECTIVES = ("ring", "nvls", "pairwise", "direct", "two_shot", "symmetric", "deepep")


@frozen
class Scenario:
    """What is simulated, on which hardware, under which load, and in how much detail.

    A plug-in is a name, a table with a name and options, or ``package.module:Class``.
    """

    model: str
    """The model: a catalogue name, or the path of a Hugging Face config.json or of its folder. Names: models."""
    workload: Workload
    """The requests that arrive: either a `replay` or a `synthetic` workload."""
    engine: str = "vllm-0.33"
    """The engine release whose scheduler and defaults are simulated. Names: engines."""
    gpu: Annotated[str | Choice | None, Gpu] = None
    """The GPU, in its usual system. A table has its `name` and other figures for it, by the keys of a GPU's file
    (docs/plugins.md, A GPU): `[gpu]`. Default: the GPU of `system`. Names: gpus. Example: "h200"."""
    system: str | None = None
    """The server or rack: its GPU, links and nodes. Default: the usual one of `gpu`. Names: systems. Example:
    "hgx-h200"."""
    nodes: int | None = field(default=None, validator=optional((gt(0), le(MOST))))
    """The number of nodes. Unit: nodes. Default: what the file of the system says. Example: 2."""
    serve: EngineSettings = EngineSettings()
    """Engine settings, named like the flags of `vllm serve`."""
    pools: Mapping[str, PoolSettings] = field(factory=dict)
    """Pools of engines by name: a fleet. Default: one pool, which the scenario describes."""
    router: Choice = Choice("round_robin")
    """How an engine is chosen for a request if there are several. Names: cluster.routers."""
    pair_router: Choice | None = None
    """How a prefill and a decode engine are chosen for a request if `pools` have these roles. Default: each_side.
    Names: cluster.pair_routers. Example: "llm_d"."""
    flow_control: Choice | None = None
    """Which requests wait at the gateway, or are refused there, before a router chooses. Default: none. Names:
    cluster.flow_controls. Example: "queue_limit"."""
    signals: SignalSettings = SignalSettings()
    """What routers are told of engines, how often and how late."""
    oracle: Choice | None = None
    """The latency oracle, which prices kernels. Default: measured if the GPU has a profile, else learned. Names:
    oracles. Example: "roofline"."""
    kernel_errors: int | None = field(default=None, validator=optional(ge(0)))
    """Let the latency model err: the seed of a draw, in which all kernels of a family, and all collectives, are off by
    as much of their 90 % intervals. `ksim capacity` draws some to tell model errors from traffic. Unit: none. Default:
    no errors. Example: 1."""
    routing: Choice = Choice("uniform")
    """How popular the experts of a mixture are: uniform, zipf with an `exponent`, or measured with the `path` of a file
    of their shares. Example: {name = "zipf", exponent = 0.5}."""
    collectives: tuple[str, ...] = COLLECTIVES
    """The algorithms that may carry out a collective; the fastest that fits is taken. Names: network.collectives."""
    host: str = "default"
    """The host, whose CPUs add to each request and step. Names: hosts."""
    slo: Slo = Slo()
    """The latency targets that goodput counts by."""
    power: PowerSettings = PowerSettings()
    """The power cap, the SM clock and the governor of the GPUs."""
    energy: Footprint = Footprint()
    """How emissions and costs follow from a run's energy."""
    detail: str = field(default="step", validator=in_(("step", "kernel")))
    """The level of detail: "step" simulates a step as one event, "kernel" every kernel of every rank."""
    seed: int = field(default=0, validator=ge(0))
    """The seed of all random numbers. Unit: none."""

    def __attrs_post_init__(self) -> None:
        if not (self.gpu or self.system) and not (self.pools and all(p.gpu or p.system for p in self.pools.values())):
            raise ValueError("name a gpu or a system (see `ksim list gpus`, `ksim list systems`)")

    @classmethod
    def read(cls, path: str | Path) -> "Scenario":
        """Read a scenario file; raises ConfigError or DataError, which name the file and the key."""
        path = Path(path)
        check_scenario_file(path)
        table = catalog.read(path)
        check_content(path, table)
        return cls.of(table, str(path), path.parent)

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "scenario", folder: Path | None = None) -> "Scenario":
        """Make a scenario from a table, such as ``{"model": "llama-3.1-8b", "gpu": "h200", "workload": {...}}``.

        Relative paths are relative to *folder*, by default the current one.  Raises ConfigError, which names *where*
        and the key.
        """
        if not isinstance(table, Mapping):
            raise ConfigError(where, f"expected a table such as {{'model': ..., 'gpu': ..., 'workload': ...}}, not"
                                     f" {table!r}; Scenario.read reads a file")
        whole = with_configs(rooted(native(table, where), folder or Path()), folder or Path())
        try:
            made = structure(cls, whole, where)
        except UnknownKey as error:
            raise misplaced(error, cls) from None
        for name in made.pools:
            _check_pool(made, name, where)
        return made

    def of_pool(self, name: str) -> "Scenario":
        """The scenario of the pool *name* alone, in which a key that the pool does not set is as it is here."""
        pool = self.pools[name]
        own: dict[str, Any] = {"gpu": pool.gpu, "system": pool.system} if pool.gpu or pool.system else {}
        own |= {key: value for key in ("nodes", "engine", "host") if (value := getattr(pool, key)) is not None}
        serve = structure(EngineSettings, merged(plain(self.serve), pool.serve), f"pools.{name}.serve")
        return evolve(self, pools={}, serve=serve, **own)

    def with_values(self, changes: Mapping[str, Any]) -> "Scenario":
        """Return a scenario with other values; keys are dotted, such as ``serve.max_num_seqs``."""
        table = _table(self)
        for key, value in changes.items():
            put(table, key, value)
        return Scenario.of(table, "settings")

    def to_toml(self) -> str:
        """The scenario as TOML, which reads back as an equal scenario."""
        return tomli_w.dumps(_table(self))


def _table(scenario: Scenario) -> dict[str, Any]:
    """*scenario* as a table, with `pools` only if there are any."""
    table: dict[str, Any] = plain(scenario)
    if not scenario.pools:
        del table["pools"]
    return table


def _check_pool(scenario: Scenario, name: str, where: str) -> None:
    """Raise ConfigError for a pool's name that cannot be part of a key, and for settings that cannot be."""
    if not _POOL_NAME.fullmatch(name):
        raise ConfigError(f"{where}: pools", f"{name!r} is no name; use letters, digits, - and _")
    serve = merged(plain(scenario.serve), scenario.pools[name].serve)
    structure(_Serving, {"pools": {name: {"serve": serve}}}, where)


@frozen
class _Served:
    """A pool's settings, those of the scenario among them."""

    serve: EngineSettings


@frozen
class _Serving:
    """The same by pool, with the keys that a scenario has."""

    pools: Mapping[str, _Served]


def setting(text: str) -> tuple[str, Any]:
    """Parse ``key=value`` as ``--set`` takes it; a value that is not TOML is text.

    Raises ConfigError for a key that cannot be one, and for a quote or a bracket that is left open.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError("--set", f"expected key=value, not {text!r}")
    if not all(map(_KEY_PART.fullmatch, key.split("."))):
        raise ConfigError("--set", f"{key!r} is no key; keys are names with dots between them, such as"
                                   f" serve.max_num_seqs=64")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if value[:1] in _CLOSING and _CLOSING[value[0]] not in value[1:]:
            raise ConfigError("--set", f"{key}: {value} is not valid TOML: {error}") from None
        return key, value
