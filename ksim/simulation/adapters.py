"""LoRA adapters of a deployment: the slots on its GPUs."""

from ksim.compute.adapters import AdapterSlots, adapted, module_names
from ksim.compute.model import Model
from ksim.foundation.errors import ConfigError
from ksim.network.system_links import PCIE, Machines, SystemLinks
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings
from ksim.workload.workload import Workload

__all__ = ["check_asked", "with_adapters"]


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
