"""The files that a scenario is read from, and those that it names.

Values become TOML's, and relative paths absolute.  LoRA adapters that are named by their folders, as PEFT saves them,
get the ranks and modules of their configs.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import LONGEST, is_there, nearest, regular_file

__all__ = ["check_content", "check_scenario_file", "native", "rooted", "with_adapter_configs"]


def check_scenario_file(path: Path) -> None:
    """Raise DataError for a path that is no scenario file, such as a trace or the directory of a run."""
    if path.is_dir():
        _refuse_folder(path)
    elif not catalog.is_file(str(path)):
        raise DataError(str(path), _other_kind(path))
    elif not path.exists() and not nearest(path):
        raise DataError(str(path), f"No such file or directory; `ksim new {path}` writes a scenario to start from")


def check_content(path: Path, table: Mapping[str, object]) -> None:
    """Raise DataError for a file without any keys."""
    if not table:
        raise DataError(str(path), f"model, workload: are missing, for the file is empty; `ksim new {path} --force`"
                                   f" writes a scenario to start from")


def _refuse_folder(path: Path) -> None:
    """Raise DataError for a folder, with the scenarios that are in it."""
    if (path / "scenario.toml").is_file():
        best, own = path / "best.toml", path / "scenario.toml"
        said = f"study; its best scenario is {best}" if best.exists() else f"run; its scenario is {own}"
        raise DataError(str(path), f"is the directory of a {said}")
    inside = sorted(file.name for file in path.glob("*.toml"))[:5]
    raise DataError(str(path), f"is a folder; name a file in it{f', such as {path / inside[0]}' if inside else ''}")


def _other_kind(path: Path) -> str:
    """What a file that is no TOML may be, and which command takes it."""
    if not path.exists() and (near := nearest(path)):
        return f"No such file or directory{near}"
    if path.suffix.lower() in (".yaml", ".yml", ".sh"):
        return f"is not a scenario, which ends in .toml; to make one of what starts your engines: ksim import {path}"
    return f"is not a scenario, which ends in .toml; if it is a trace: ksim replay {path} --model MODEL --gpu GPU"


#: Keys whose values are paths relative to the scenario's folder; a catalogue key holds a path if it ends like a file.
_CATALOGUE = ("model", "gpu", "system", "host", "engine")
_PATHS = (*((key,) for key in _CATALOGUE), ("gpu", "name"), ("energy", "grid"), ("oracle", "path"), ("routing", "path"),
          ("router", "config"), ("pair_router", "config"), ("workload", "arrivals", "path"))
#: The same in a workload, or in one of a mix.
_PATHS_OF_WORKLOADS = (("model",), ("replay", "path"), ("synthetic", "arrivals", "path"),
                       ("synthetic", "prompt", "path"), ("synthetic", "output", "path"))


def native(value: Any, where: str) -> Any:
    """*value* in the types of TOML: NumPy's numbers, tuples and paths are converted.

    Raises ConfigError for a key that is not text.
    """
    if isinstance(value, Mapping):
        if strangers := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(where, f"keys are texts, not {strangers[0]!r}")
        return {key: native(inner, f"{where}: {key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [native(inner, where) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if type(value).__module__ == "numpy" else value


def _gpu_named(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table*, in which a table of a GPU's figures without a name is of the GPU of the system beside it."""
    gpu, system = table.get("gpu"), table.get("system")
    if isinstance(gpu, Mapping) and "name" not in gpu and isinstance(system, str):
        return {**table, "gpu": {"name": catalog.load("systems", system).get("gpu"), **gpu}}
    return dict(table)


def rooted(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """*table* with its relative paths made absolute, and GPUs named of which it has figures alone."""
    absolute = _gpu_named(table)
    pools, workload = absolute.get("pools"), absolute.get("workload")
    mix = workload.get("mix") if isinstance(workload, Mapping) else None
    if mix and isinstance(workload, Mapping) and (also := {"synthetic", "replay"} & {*workload}):
        raise ConfigError(f"workload.{min(also)}", "is beside a mix; leave it out, or put it under workload.mix.NAME")
    named = [("pools", name, *key) for name in (pools if isinstance(pools, Mapping) else ())
             for key in (*((key,) for key in _CATALOGUE), ("gpu", "name"))]
    loads = [("workload",), *(("workload", "mix", name) for name in (mix if isinstance(mix, Mapping) else ()))]
    named += [(*load, *key) for load in loads for key in _PATHS_OF_WORKLOADS]
    if isinstance(pools, Mapping):
        absolute["pools"] = {name: _gpu_named(pool) if isinstance(pool, Mapping) else pool
                             for name, pool in pools.items()}
    for keys in (*_PATHS, *named):
        holder: Any = absolute
        for key in keys[:-1]:
            if not isinstance(holder.get(key), Mapping):
                break
            holder[key] = dict(holder[key])
            holder = holder[key]
        else:
            value = holder.get(keys[-1])
            if isinstance(value, str) and (keys[-1] == "path" or catalog.is_file(value) or
                                           (keys[-1] == "config" and value.endswith((".yaml", ".yml"))) or
                                           (keys[-1] == "model" and _is_folder(value, folder))):
                holder[keys[-1]] = os.path.abspath(folder / value)  # noqa: PTH100  resolve() fails on loops of links
    return absolute


def _is_folder(model: str, folder: Path) -> bool:
    """Whether *model* is a folder beside the scenario, and not a name of the catalogue."""
    path = folder / model
    return bool(model) and is_there(path) and path.is_dir() and model not in catalog.entries("models")


#: What vLLM refuses of an adapter where it is set (0.33, vllm/lora/peft_helper.py).
_REFUSED = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")
#: What PEFT calls all modules.
_ALL_MODULES = "all-linear"


def with_adapter_configs(table: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A scenario's *table* with the rank and the modules of adapters that it names by `path`, relative to *folder*.

    The path is left out, so that a run's own scenario does not need the files.  Raises ConfigError or DataError for a
    config that vLLM would refuse, or that cannot be read.
    """
    pools = {name: with_adapter_configs(pool, folder) if isinstance(pool, Mapping) else pool
             for name, pool in table["pools"].items()} if isinstance(table.get("pools"), Mapping) else {}
    table = {**table, "pools": pools} if pools else table
    serve = table.get("serve")
    modules = serve.get("lora_modules") if isinstance(serve, Mapping) else None
    if not isinstance(modules, list) or not any(isinstance(each, Mapping) and "path" in each for each in modules):
        return table
    read = [_adapter(each, folder) if isinstance(each, Mapping) and isinstance(each.get("path"), str) else each
            for each in modules]
    return {**table, "serve": {**serve, "lora_modules": read}} if isinstance(serve, Mapping) else table


def _adapter(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An entry with what its config says, in the place of its `path`."""
    path = folder / entry["path"] / "adapter_config.json"
    try:
        config = json.loads(regular_file(path, LONGEST).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(str(path), "is not a JSON object")
    for key in _REFUSED:
        if config.get(key):
            raise ConfigError(f"{path}: {key}", f"is {config[key]!r}, and vLLM refuses adapters with it")
    if config.get("rank_pattern"):
        raise ConfigError(f"{path}: rank_pattern", "gives modules ranks of their own, which ksim does not know")
    found = {"rank": config.get("r"), **_targets(config.get("target_modules", _ALL_MODULES), path)}
    return {**{key: value for key, value in found.items() if value is not None},
            **{key: value for key, value in entry.items() if key != "path"}}


def _targets(modules: Any, path: Path) -> dict[str, list[str]]:
    """The `target_modules`; none where they are all."""
    if modules in (_ALL_MODULES, None):
        return {}
    if not isinstance(modules, list):
        raise ConfigError(f"{path}: target_modules", f"is {modules!r}; ksim reads lists of names, and {_ALL_MODULES!r}")
    return {"target_modules": sorted({str(module).rpartition(".")[2] for module in modules})}
