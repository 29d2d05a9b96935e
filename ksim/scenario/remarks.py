"""What users of a run should know of its prices."""

from collections.abc import Callable, Mapping
from typing import Any

from ksim.compute.latent import attends_sparsely
from ksim.compute.notation.product import UNPACKED
from ksim.compute.recurrent import keeps_states
from ksim.foundation.config import Choice, flat
from ksim.scenario.quantized import price_remarks
from ksim.scenario.vision import vision_of

__all__ = ["UNMEASURED", "remarks"]


#: What is priced by physics alone, since no measurement of it ships: how it is called, and whether a deployment has it.
UNMEASURED: Mapping[str, Callable[[Any], bool]] = {
    "attention over drafted tokens": lambda deployment: deployment.serve.speculative_config is not None,
    "rejection sampling": lambda deployment: deployment.serve.speculative_config is not None,
    "shrink and expand of LoRA adapters": lambda deployment: deployment.serve.enable_lora,
    "log-softmax of prompt logprobs": lambda deployment: _asks_logprobs(deployment.scenario.workload.synthetic),
    "attention to blocks of keys and to compressed keys": lambda deployment: attends_sparsely(deployment.model),
    "dequantization of bitsandbytes": lambda deployment: deployment.serve.precision.weights in UNPACKED,
    "states of Mamba and lightning attention": lambda deployment: keeps_states(deployment.model),
}


def _asks_logprobs(load: Any) -> bool:
    return load is not None and load.prompt_logprobs is not None


def remarks(deployment: Any) -> tuple[str, ...]:
    """What users should know of the GPU's power, and of kernels that were never measured."""
    gpu = deployment.gpu
    told = []
    if gpu.power.basis == "estimated":
        told.append(f"power of {gpu.name} is estimated from its data sheet ({gpu.power.limit:g} W, of which"
                    f" {gpu.power.idle:g} idle): joules may be {gpu.power.reach:.0%} off")
    if isinstance(changed := deployment.scenario.gpu, Choice):
        figures = ", ".join(f"{key} = {value}" for key, value in flat(changed.options))
        told.append(f"{gpu.name} has other figures here ({figures}), and nobody measured such a GPU: its kernels keep"
                    " the efficiencies known of it, and its joules per byte and FLOP")
    if gpu.architecture == "turing":
        told.append(f"{gpu.name} has no BF16: vLLM falls back to FP16 there, and 16-bit kernels are priced at its rate")
    if unmeasured := [name for name, has in UNMEASURED.items() if has(deployment)]:
        told.append(f"prices of these kernels are physics alone, unmeasured: {', '.join(unmeasured)}")
    told += price_remarks(deployment)
    if vision_of(deployment.model, deployment.serve):
        told.append("what the host does to images, and their way to the GPU, takes no time here")
    return tuple(told)
