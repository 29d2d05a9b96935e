"""A scenario: all that decides a run, in one TOML file."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from attrs import field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation import catalog
from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, DataError
from ksim.specs.footprint import Footprint
from ksim.specs.hardware import MOST
from ksim.specs.power import PowerSettings
from ksim.specs.settings import EngineSettings, Slo
from ksim.workload.workload import Workload

#: Keys whose values are paths relative to the scenario's folder; a catalogue key holds a path if it ends like a file.
_CATALOGUE = ("model", "gpu", "system", "host", "engine")
_PATHS = (*((key,) for key in _CATALOGUE), ("energy", "grid"), ("oracle", "path"), ("routing", "path"),
          ("workload", "replay", "path"), ("workload", "synthetic", "prompt", "path"),
          ("workload", "synthetic", "output", "path"))

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
    gpu: str | None = None
    """The GPU, in its usual system. Default: the GPU of `system`. Names: gpus. Example: "h200"."""
    system: str | None = None
    """The server or rack: its GPU, links and nodes. Default: the usual one of `gpu`. Names: systems. Example:
    "hgx-h200"."""
    nodes: int | None = field(default=None, validator=optional((gt(0), le(MOST))))
    """The number of nodes. Unit: nodes. Default: what the file of the system says. Example: 2."""
    serve: EngineSettings = EngineSettings()
    """Engine settings, named like the flags of `vllm serve`."""
    router: Choice = Choice("round_robin")
    """How a replica is chosen for a request if `data_parallel_size` is above 1. Names: cluster.routers."""
    oracle: Choice | None = None
    """The latency oracle, which prices kernels. Default: measured if the GPU has a profile, else learned. Names:
    oracles. Example: "roofline"."""
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
        if not self.gpu and not self.system:
            raise ValueError("name a gpu or a system (see `ksim list gpus`, `ksim list systems`)")

    @classmethod
    def read(cls, path: str | Path) -> "Scenario":
        """Read a scenario file; raises ConfigError or DataError, which name the file and the key."""
        path = Path(path)
        _check_scenario_file(path)
        return cls.of(catalog.read(path), str(path), path.parent)

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "scenario", folder: Path | None = None) -> "Scenario":
        """Make a scenario from a table, such as ``{"model": "llama-3.1-8b", "gpu": "h200", "workload": {...}}``.

        Relative paths are relative to *folder*, by default the current one.  Raises ConfigError, which names *where*
        and the key.
        """
        if not isinstance(table, Mapping):
            raise ConfigError(where, f"expected a table such as {{'model': ..., 'gpu': ..., 'workload': ...}}, not"
                                     f" {table!r}; Scenario.read reads a file")
        return structure(cls, _rooted(_native(table, where), folder or Path()), where)

    def with_values(self, changes: Mapping[str, Any]) -> "Scenario":
        """Return a scenario with other values; keys are dotted, such as ``serve.max_num_seqs``."""
        table = plain(self)
        for key, value in changes.items():
            _put(table, key, value)
        return Scenario.of(table, "settings")

    def to_toml(self) -> str:
        """The scenario as TOML, which reads back as an equal scenario."""
        return tomli_w.dumps(plain(self))


def _check_scenario_file(path: Path) -> None:
    """Raise DataError for a path that is no scenario file, such as a trace or the directory of a run."""
    if path.is_dir() and (path / "scenario.toml").is_file():
        raise DataError(str(path), f"is the directory of a run; its scenario is {path / 'scenario.toml'}")
    if not path.is_dir() and not catalog.is_file(str(path)):
        raise DataError(str(path), f"is not a scenario, which ends in .toml; if it is a trace:"
                                   f" ksim replay {path} --model MODEL --gpu GPU")


def setting(text: str) -> tuple[str, Any]:
    """Parse ``key=value`` as ``--set`` takes it; a value that is not TOML is text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError("--set", f"expected key=value, not {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return key.strip(), value.strip()


def _native(value: Any, where: str) -> Any:
    """*value* in the types of TOML: NumPy's numbers, tuples and paths are converted.

    Raises ConfigError for a key that is not text.
    """
    if isinstance(value, Mapping):
        if strangers := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(where, f"keys are texts, not {strangers[0]!r}")
        return {key: _native(inner, f"{where}: {key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_native(inner, where) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if type(value).__module__ == "numpy" else value


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if isinstance(inner, str):  # a plug-in by its bare name, which now gets options
            inner = table[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(key, f"{parent} is a value, not a table")
        table = inner
    table[last] = value


def _rooted(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """*table* with its relative paths made absolute."""
    rooted = dict(table)
    for keys in _PATHS:
        holder: Any = rooted
        for key in keys[:-1]:
            if not isinstance(holder.get(key), Mapping):
                break
            holder[key] = dict(holder[key])
            holder = holder[key]
        else:
            value = holder.get(keys[-1])
            if isinstance(value, str) and (keys[-1] == "path" or catalog.is_file(value) or
                                           (keys == ("model",) and _is_folder(value, folder))):
                holder[keys[-1]] = os.path.abspath(folder / value)  # noqa: PTH100  resolve() fails on loops of links
    return rooted


def _is_folder(model: str, folder: Path) -> bool:
    """Whether *model* is a folder beside the scenario, and not a name of the catalogue."""
    return bool(model) and (folder / model).is_dir() and model not in catalog.entries("models")
