"""What engines refuse of quantized models and of systems, and what users of a run should know of its prices."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ksim.compute.kernels.basic import Gemm, GroupedGemm
from ksim.compute.model import Model
from ksim.compute.notation.product import UNPACKED, Product
from ksim.foundation.config import Choice, flat
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.foundation.units import DType
from ksim.oracles import estimate
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings, EngineVersion
from ksim.specs.shard import WEIGHT_ONLY, Precision, Shard

__all__ = ["check_gpus", "check_quantized", "on_gpu", "price_remarks", "UNMEASURED", "remarks"]


#: A product of a decode, by which an oracle says how it prices a format.
ROWS, SIZE, EXPERTS = 16, 4096, 8


def check_quantized(model: Model, serve: EngineSettings, gpu: Gpu, version: EngineVersion) -> None:
    """Raise ConfigError for quantized weights that vLLM does not start with: `serve` has all settings filled in."""
    if not version.name.startswith("vLLM"):
        return
    products = list(_quantized(model, serve.precision))
    weights, activations = serve.precision.weights, serve.precision.activations
    if products and serve.quantization == "int8_w8a8" and gpu.architecture.startswith("blackwell"):
        raise ConfigError("serve.quantization", f"{serve.quantization}: vLLM's CUTLASS kernels have no INT8 on a"
                                                f" {gpu.name} (\"Int8 not supported on SM100 and later. Use FP8"
                                                f" quantization instead, or run on older arch (SM < 100)\"); serve an"
                                                f" FP8 checkpoint, quantization = 'fp8'")
    if gpu.architecture == "turing" and DType.MXFP4 in (weights, serve.precision.of("experts")[0]):
        raise ConfigError("serve.quantization", f"{serve.quantization}: vLLM has no MXFP4 on a {gpu.name}, for its"
                                                " kernels need BF16 (\"The quantization method mxfp4 is not supported"
                                                " for the current GPU. Minimum capability: 80. Current capability:"
                                                " 75.\"); choose another GPU, or a checkpoint in AWQ, GPTQ or FP8")
    if activations is not DType.BF16 or not weights.group:
        return
    sizes, shard = model.sizes, Shard(tensor=serve.tensor_parallel_size)
    for product in products:
        whole = sizes.volume(product.depth)
        depth = sizes.on(product.parallel, shard, product.label).volume(product.depth)
        if depth % weights.group and whole > weights.group:
            ranks = whole % weights.group == 0
            key, value = ("tensor_parallel_size", shard.tensor) if ranks else ("serve.quantization", serve.quantization)
            raise ConfigError(key, f"{value}: {product.label} of {model.name} in {serve.quantization}: vLLM says"
                                   f" \"Weight input_size_per_partition = {depth} is not divisible by group_size ="
                                   f" {weights.group}\"; "
                                   + ("set a smaller one, or" if ranks else "name a format with smaller groups, such as"
                                      " int4_w4a16_g64_zp, or")
                                   + " name the checkpoint's config.json as the model: its layers may be padded")


def _quantized(model: Model, precision: Precision) -> Iterator[Product]:
    """The dense products that multiply weights in the format of the deployment, those of equal layers once."""
    if precision.weights in (DType.BF16, *UNPACKED):
        return
    for layer in {id(layer): layer for layer in model.decoder.layers}.values():
        for op in layer:
            if isinstance(op, Product) and op.quantized and not op.routed and (
                    precision.of(op.part)[0] is precision.weights):
                yield op


def price_remarks(deployment: Any) -> list[str]:
    """Which quantized products the deployment's oracle prices by another format's efficiency, or another engine's."""
    precision, model = deployment.serve.precision, deployment.model
    formats, experts = (precision.weights, precision.activations), precision.of("experts")
    probes: list[Gemm | GroupedGemm] = [Gemm(ROWS, SIZE, SIZE, *formats)] if any(_quantized(model, precision)) else []
    if model.decoder.top_k and experts[0] not in (DType.BF16, *UNPACKED):
        probes.append(GroupedGemm(((ROWS, EXPERTS),), SIZE, SIZE, ROWS, *experts))
    sources = [(probe, estimate(deployment.oracle, probe, deployment.gpu).source) for probe in probes]
    others = [f"{probe.family} with weights in {probe.weights} and activations in {probe.activations} as"
              f" {source.partition(', as ')[2]}" for probe, source in sources if ", as " in source]
    told = [f"nobody has measured these products on {deployment.gpu.name}; they are priced by the efficiency of another"
            f" format, with wide intervals: {'; '.join(others)}"] if others else []
    integers = formats[0].element in (DType.INT4, DType.INT8) and not deployment.version.name.startswith("TensorRT")
    if integers and ("gemm", "measured") in [(probe.family, source) for probe, source in sources]:
        told.append(f"of dense products with weights in {formats[0]}, TensorRT-LLM's kernels were measured on"
                    f" {deployment.gpu.name}, and not those of {deployment.version.name}: intervals are of the former")
    return [*_weights_alone(deployment.serve.quantization, deployment.gpu), *told]


def _weights_alone(quantization: str, gpu: Gpu) -> Iterator[str]:
    """What is multiplied in 16 bits because *gpu* lacks the format of its weights."""
    if lacks := {needs for name, needs in WEIGHT_ONLY.values() if name == quantization and needs not in gpu.flops}:
        yield (f"{gpu.name} does not multiply in {lacks.pop()}: vLLM's Marlin kernels take such weights there, and"
               f" activations in 16 bits (quantization {quantization})")


def on_gpu(quantization: str, gpu: Gpu, version: EngineVersion) -> str:
    """What *version* makes of a *quantization* on *gpu*, which may not multiply in its format."""
    name, needs = WEIGHT_ONLY.get(quantization, (quantization, None))
    return name if needs and needs not in gpu.flops and version.name.startswith("vLLM") else quantization


#: What is priced by physics alone, since no measurement of it ships: how it is called, and whether a deployment has it.
#: Features have others (`ksim.scenario.features`).
UNMEASURED: Mapping[str, Callable[[Any], bool]] = {
    "attention to blocks of keys and to compressed keys": lambda deployment: deployment.model.attends_by_block,
    "dequantization of bitsandbytes": lambda deployment: deployment.serve.precision.weights in UNPACKED,
    "states of Mamba and lightning attention": lambda deployment: deployment.model.keeps_states,
}


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
    if deployment.version.scheduler == "sglang" and deployment.approximated:
        told.append(f"SGLang's schedules with {' and '.join(deployment.approximated)} are approximated: vLLM's"
                    " scheduler makes them, prompts first")
    unmeasured = [name for feature in deployment.features
                  for name in feature.unmeasured(deployment.scenario.workload)]
    if unmeasured := [*unmeasured, *(name for name, has in UNMEASURED.items() if has(deployment))]:
        told.append(f"prices of these kernels are physics alone, unmeasured: {', '.join(unmeasured)}")
    told += price_remarks(deployment)
    return *told, *(remark for feature in deployment.features
                    for remark in feature.remarks(deployment.model, deployment.serve))


def check_gpus(serve: EngineSettings, system: System) -> None:
    """Raise DoesNotFit where *system* has fewer GPUs than the replicas need."""
    needed = serve.gpus * serve.data_parallel_size
    if needed <= system.gpus:
        return
    advice = (f"set nodes to {-(-needed // system.gpus_per_node)} or more" if system.network else
              "name a system that has as many, or with a [network] between nodes (docs/plugins.md)")
    count = serve.data_parallel_size
    replicas = f"{count} replicas of {serve.gpus} need" if count > 1 else "one replica needs"
    raise DoesNotFit(f"{replicas} {needed} GPUs, and {system.name} has {system.gpus}; {advice}")
