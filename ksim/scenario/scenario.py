"""A scenario: all that decides a run, in one TOML file.

A scenario is read from a table: keys with dots become tables, and keys that stand in the wrong table are refused with
where they may belong.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from attrs import evolve, field, fields_dict, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation import catalog
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, UnknownKey
from ksim.scenario.files import check_content, check_scenario_file, native, rooted, with_adapter_configs
from ksim.specs.hardware import MOST, Footprint, Gpu, PowerSettings, RankSettings
from ksim.specs.pools import Lifecycle, NodeDrain, PoolSettings, RollingUpdateSettings
from ksim.specs.settings import EngineSettings, SignalSettings, Slo
from ksim.specs.startup import Startup
from ksim.workload.arrivals import Arrivals
from ksim.workload.replay import MixedWorkload, Replay, Workload
from ksim.workload.synthetic import Synthetic

#: The tables in which a key is looked for.
_TABLES: Mapping[str, type] = {
    "serve": EngineSettings, "workload": Workload, "workload.mix.NAME": MixedWorkload,
    "workload.synthetic": Synthetic, "workload.replay": Replay,
    "workload.synthetic.arrivals": Arrivals, "slo": Slo, "power": PowerSettings, "energy": Footprint,
    "signals": SignalSettings, "lifecycle": Lifecycle, "lifecycle.rolling_update": RollingUpdateSettings,
    "pools.NAME": PoolSettings, "ranks": RankSettings}


def misplaced(error: UnknownKey, top: type) -> UnknownKey:
    """*error*, and where the unknown key belongs, if there is such a key in another table of a scenario."""
    where, problem = error.args
    name = where.rpartition(": ")[2].rpartition(".")[2].replace("-", "_")
    if "did you mean" in problem:
        return error
    places = [f"[{table}]" for table, cls in _TABLES.items() if name in fields_dict(cls)]
    places = ["the top of the file"] if name in fields_dict(top) else places
    return UnknownKey(where, f"unknown key; {name} belongs to {' or '.join(places)}") if places else error


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted *key* of *table*, in tables that are made where they are missing; a place in a list is its number.

    Raises ConfigError where a value is in the way, and for a place that a list does not have.
    """
    *parents, last = key.split(".")
    holder: Any = table
    for parent in parents:
        place = _place(holder, parent, key)
        inner = holder.setdefault(place, {}) if isinstance(holder, dict) else holder[place]
        if isinstance(inner, str):  # a plug-in by its bare name, which now gets options
            inner = holder[place] = {"name": inner}
        if not isinstance(inner, dict | list):
            raise ConfigError(key, f"{parent} is a value, not a table")
        holder = inner
    holder[_place(holder, last, key)] = value


def _place(holder: dict[str, Any] | list[Any], part: str, key: str) -> Any:
    """What *part* of *key* is in *holder*: a name, or a place in a list; raises ConfigError for one that it lacks."""
    if isinstance(holder, dict):
        return part
    if not part.isdecimal() or int(part) >= len(holder):
        raise ConfigError(key, f"{part} is no place in a list of {len(holder)}; the first is 0")
    return int(part)


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with *changes*; tables inside are merged too, except plug-ins, whose options belong together."""
    both = {key: merged(table[key], changes[key]) for key in changes if _are_tables(table.get(key), changes[key])}
    return {**table, **changes, **both}


def alike(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all *tables* have alike; of tables inside, too."""
    values: dict[str, list[Any]] = {key: [table.get(key) for table in tables] for key in tables[0]}
    return {key: same[0] if all(value == same[0] for value in same) else alike(same) for key, same in values.items()
            if all(value == same[0] for value in same) or _are_tables(*same)}


def beside(whole: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """What *table* changes in *whole*: `merged` makes *table* of both."""
    return {key: beside(whole[key], value) if _are_tables(whole.get(key), value) else value
            for key, value in table.items() if whole.get(key) != value}


def _are_tables(*values: Any) -> bool:
    """Whether *values* are tables that name no plug-in."""
    return all(isinstance(value, Mapping) and "name" not in value for value in values)


def pieces(where: str, key: str, text: str) -> list[str]:
    """*text*, split at its commas, except those in quotes and brackets; raises ConfigError for one that is left open.

    The error names *where* the text of *key* was given.
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if quote or depth:
        raise ConfigError(where, f"{key}: a quote or bracket is left open in {text!r}")
    return parts


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


def _detail(word: str) -> str:
    """The level of detail; "kernel" is what "rank" was called."""
    return "rank" if word == "kernel" else word


@frozen
class Scenario:
    """What is simulated, on which hardware, under which load, and in how much detail.

    A plug-in is a name, a table with a name and options, or ``package.module:Class``.
    """

    model: str
    """The model: a catalogue name, or the path of a Hugging Face config.json or of its folder. Names: models."""
    workload: Workload
    """The requests that arrive: a `replay` or a `synthetic` workload, or a `mix` of several."""
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
    startup: Annotated[str | Choice, Startup] = "default"
    """How long a replica takes to start, by the machine that it starts on; a table has its `name` and other figures,
    such as weights = "page_cache". Names: startup. Example: "gke"."""
    autoscaler: Choice | None = None
    """What scales the pools that have no autoscaler of their own, all together. Default: none. Names: autoscaling.
    Example: "hpa"."""
    lifecycle: Lifecycle = Lifecycle()
    """How replicas of pools end: grace periods, rolling updates and disruption budgets."""
    drains: tuple[NodeDrain, ...] = ()
    """The nodes that are drained while they serve, and when. Default: none."""
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
    of their shares (`ksim routing` makes one). Where experts are drawn step by step, any may move: the logarithm of
    popularity has a standard `deviation`, a `step_correlation` and a `layer_correlation`. Example: {name = "zipf",
    exponent = 0.5}."""
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
    ranks: RankSettings = RankSettings()
    """How GPUs differ that are built alike: slow ones, and speeds, leakage and launches that are not all the same."""
    detail: str = field(default="step", converter=_detail, validator=in_(("step", "rank")))
    """The level of detail: "step" takes all GPUs of a stage to be alike, "rank" simulates each one that may differ, by
    its experts, its requests, or `ranks`, as a process of its own."""
    seed: int = field(default=0, validator=ge(0))
    """The seed of all random numbers. Unit: none."""

    def __attrs_post_init__(self) -> None:
        if not (self.gpu or self.system) and not (self.pools and all(p.gpu or p.system for p in self.pools.values())):
            raise ValueError("name a gpu or a system (see `ksim list gpus`, `ksim list systems`)")
        if self.detail == "step" and self.ranks != RankSettings():
            raise ValueError("[ranks] makes GPUs differ, and detail = 'step' takes them to be alike; set detail ="
                             " 'rank', or leave [ranks] out")

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
        whole = with_adapter_configs(rooted(native(table, where), folder or Path()), folder or Path())
        try:
            made = structure(cls, whole, where)
        except UnknownKey as error:
            raise misplaced(error, cls) from None
        for name in made.pools:
            _check_pool(made, name, where)
        _check_models(made, where)
        _check_drains(made.drains, f"{where}: drains")
        if not any(map(made.changes_size, made.pools)):
            _check_no_ends(made.lifecycle, f"{where}: lifecycle")
        return made

    @property
    def models(self) -> tuple[str, ...]:
        """The models that its pools serve, each once."""
        return tuple(dict.fromkeys(map(self.model_of, self.pools))) or (self.model,)

    def model_of(self, name: str) -> str:
        """The model that the pool *name* serves."""
        return self.pools[name].model or self.model

    def autoscaler_of(self, name: str) -> Choice | None:
        """What scales the pool *name*: its own autoscaler, or that of all pools; None where nothing does."""
        return self.pools[name].autoscaler or self.autoscaler

    def lifecycle_of(self, name: str) -> Lifecycle:
        """How replicas of the pool *name* end."""
        return self.pools[name].lifecycle or self.lifecycle

    def changes_size(self, name: str) -> bool:
        """Whether replicas of the pool *name* start and go while it serves."""
        return (self.autoscaler_of(name) is not None or self.lifecycle_of(name).rolling_update.at is not None
                or bool(self.drains))

    def of_pool(self, name: str) -> "Scenario":
        """The scenario of the pool *name* alone, in which a key that the pool does not set is as it is here."""
        pool = self.pools[name]
        own: dict[str, Any] = {"gpu": pool.gpu, "system": pool.system} if pool.gpu or pool.system else {}
        own |= {key: value for key in ("model", "nodes", "engine", "host", "autoscaler", "lifecycle")
                if (value := getattr(pool, key)) is not None}
        serve = structure(EngineSettings, merged(plain(self.serve), pool.serve), f"pools.{name}.serve")
        workload = self.workload if len(self.models) == 1 else (
            self.workload.of_model(self.model_of(name), self.model) or structure(Workload, ANY_WORKLOAD))
        return evolve(self, pools={}, serve=serve, workload=workload, **own)

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
    """*scenario* as a table, with `pools`, `drains` and a `mix` only if there are any."""
    table: dict[str, Any] = plain(scenario)
    if not scenario.workload.mix:
        del table["workload"]["mix"]
    for key in ("pools", "drains"):
        if not table[key]:
            del table[key]
    return table


def _check_pool(scenario: Scenario, name: str, where: str) -> None:
    """Raise ConfigError for a pool's name that cannot be part of a key, and for settings that cannot be."""
    if not _POOL_NAME.fullmatch(name):
        raise ConfigError(f"{where}: pools", f"{name!r} is no name; use letters, digits, - and _")
    pool = scenario.pools[name]
    if pool.places != pool.replicas and not scenario.changes_size(name):
        raise ConfigError(f"{where}: pools.{name}.max_replicas", "is what an autoscaler may ask for, and there is none;"
                                                                 " name one, or set replicas")
    if not scenario.changes_size(name):
        _check_no_ends(pool.lifecycle or Lifecycle(), f"{where}: pools.{name}.lifecycle")
    serve = merged(plain(scenario.serve), pool.serve)
    structure(_Serving, {"pools": {name: {"serve": serve}}}, where)


def _check_models(scenario: Scenario, where: str) -> None:
    """Raise ConfigError for requests of a model that no pool serves."""
    served, workload = scenario.models, scenario.workload
    asked = {"model": scenario.model} if workload.synthetic else {
        f"workload.mix.{name}.model": part.model or (scenario.model if part.synthetic else served[0])
        for name, part in workload.mix.items()}
    for key, model in asked.items():
        if model not in served:
            raise ConfigError(f"{where}: {key}", f"is {model!r}, and no pool serves it; name one of"
                                                 f" {', '.join(served)}, or add a pool with model = {model!r}")


def _check_no_ends(lifecycle: Lifecycle, where: str) -> None:
    """Raise ConfigError where *lifecycle*, of replicas that stay, says how they end; how they would be updated, and how
    many could be evicted, does no harm."""
    harmless = evolve(lifecycle, rolling_update=RollingUpdateSettings(), disruption_budget=None)
    for key in beside(plain(Lifecycle()), plain(harmless)):
        raise ConfigError(f"{where}.{key}", "is about replicas of pools that go, and nothing lets any go; name an"
                                            " autoscaler, or set lifecycle.rolling_update.at or drains")


def _check_drains(drains: Sequence[NodeDrain], where: str) -> None:
    """Raise ConfigError for two *drains* of one node at a time."""
    for number, drain in enumerate(drains):
        if len({*drain.nodes}) < len(drain.nodes):
            raise ConfigError(f"{where}[{number}].nodes", "has a node twice; name each once")
        for before, other in enumerate(drains[:number]):
            if drain.at < other.end and other.at < drain.end and (both := {*drain.nodes} & {*other.nodes}):
                raise ConfigError(f"{where}[{number}].nodes", f"has node {min(both)}, which drains[{before}] has then;"
                                                              " say for how long, or set another time")


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
