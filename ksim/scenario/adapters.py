"""LoRA adapters of a deployment: the slots on its GPUs.

Adapters as PEFT saves them: what vLLM reads of their adapter_config.json (0.33, vllm/lora/peft_helper.py).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.compute.adapters import AdapterSlots, adapted, module_names
from ksim.compute.model import Model
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import LONGEST, regular_file
from ksim.network.routes import PCIE, Machines, SystemLinks
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings
from ksim.workload.replay import Workload

__all__ = ["check_asked", "with_adapters", "with_configs"]


def with_adapters(model: Model, serve: EngineSettings, gpu: Gpu, system: System) -> Model:
    """*model* with the slots that *serve* asks for; raises ConfigError for adapters that do not match it."""
    if not serve.enable_lora:
        return model
    slots = AdapterSlots(
        serve.max_loras, serve.max_lora_rank, SystemLinks(Machines(system, gpu)).by_kind[PCIE].capacity,
        serve.fully_sharded_loras, serve.lora_target_modules)
    changed = adapted(model, slots)
    _check_modules(serve, module_names(changed), model.name)
    return changed


def _check_modules(serve: EngineSettings, known: set[str], name: str) -> None:
    for place, module in enumerate(serve.lora_modules):
        if strangers := [target for target in module.target_modules or () if target not in known]:
            raise ConfigError(f"serve.lora_modules[{place}].target_modules",
                              f"{strangers[0]!r} is no module of {name} with slots for adapters; these are"
                              f" {', '.join(sorted(known))}")


def check_asked(workload: Workload, serve: EngineSettings) -> None:
    """Raise ConfigError for a synthetic load that asks for adapters that *serve* does not have."""
    asked = workload.synthetic.adapters if workload.synthetic else None
    if asked is None:
        return
    if not serve.enable_lora:
        raise ConfigError("workload.synthetic.adapters", "asks for adapters, and serve.enable_lora is off; set it and"
                                                         " lora_modules, or leave them out")
    served = {name for module in serve.lora_modules for name in module.names}
    if strangers := [name for name in asked.names if name and name not in served]:
        entry = f'{{name = "{asked.name}", count = {asked.count}}}'
        raise ConfigError("workload.synthetic.adapters", f"asks for {strangers[0]!r}, and it is none of"
                                                         f" serve.lora_modules; add {entry} to them")


#: What vLLM refuses of an adapter where it is set.
REFUSED = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")
#: What PEFT calls all modules.
ALL = "all-linear"


def with_configs(table: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A scenario's *table* with the rank and the modules of adapters that it names by `path`, relative to *folder*.

    The path is left out, so that a run's own scenario does not need the files.  Raises ConfigError or DataError for a
    config that vLLM would refuse, or that cannot be read.
    """
    pools = {name: with_configs(pool, folder) if isinstance(pool, Mapping) else pool
             for name, pool in table["pools"].items()} if isinstance(table.get("pools"), Mapping) else {}
    table = {**table, "pools": pools} if pools else table
    serve = table.get("serve")
    modules = serve.get("lora_modules") if isinstance(serve, Mapping) else None
    if not isinstance(modules, list) or not any(isinstance(each, Mapping) and "path" in each for each in modules):
        return table
    read = [_read(each, folder) if isinstance(each, Mapping) and isinstance(each.get("path"), str) else each
            for each in modules]
    return {**table, "serve": {**serve, "lora_modules": read}} if isinstance(serve, Mapping) else table


def _read(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An entry with what its config says, in the place of its `path`."""
    path = folder / entry["path"] / "adapter_config.json"
    try:
        config = json.loads(regular_file(path, LONGEST).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(str(path), "is not a JSON object")
    for key in REFUSED:
        if config.get(key):
            raise ConfigError(f"{path}: {key}", f"is {config[key]!r}, and vLLM refuses adapters with it")
    if config.get("rank_pattern"):
        raise ConfigError(f"{path}: rank_pattern", "gives modules ranks of their own, which ksim does not know")
    found = {"rank": config.get("r"), **_targets(config.get("target_modules", ALL), path)}
    return {**{key: value for key, value in found.items() if value is not None},
            **{key: value for key, value in entry.items() if key != "path"}}


def _targets(modules: Any, path: Path) -> dict[str, list[str]]:
    """The `target_modules`; none where they are all."""
    if modules in (ALL, None):
        return {}
    if not isinstance(modules, list):
        raise ConfigError(f"{path}: target_modules", f"is {modules!r}; ksim reads lists of names, and {ALL!r}")
    return {"target_modules": sorted({str(module).rpartition(".")[2] for module in modules})}
