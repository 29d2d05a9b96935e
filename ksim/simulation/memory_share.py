"""The share of a GPU's memory that an engine uses where nobody says, as `gpu_memory_utilization`.

vLLM's default is a share of all memory, for weights, activations and KV.  TensorRT-LLM gives KV a share of what weights
and the largest step leave free; SGLang computes a share for weights and KV.  Both are converted here to vLLM's.
"""

from ksim.compute.model import Model
from ksim.foundation.units import GIB
from ksim.simulation.sizing import RESERVED, Memory, memory, shards_of
from ksim.simulation.speculation import drafted
from ksim.specs.engine import EngineVersion
from ksim.specs.hardware import Gpu
from ksim.specs.settings import EngineSettings

__all__ = ["of_free", "of_static", "utilization"]


def utilization(version: EngineVersion, model: Model, gpu: Gpu, settings: EngineSettings) -> tuple[float, str]:
    """The share by default, and where it comes from; *settings* are complete but for it."""
    if version.gpu_memory_utilization is not None:
        return version.gpu_memory_utilization, version.name
    if version.free_gpu_memory_fraction is not None:
        share = version.free_gpu_memory_fraction
        return (of_free(share, model, gpu, settings),
                f"{version.name}: free_gpu_memory_fraction = {share:g}, of what weights and activations leave")
    share = round(max(0.0, gpu.memory - sglang_reserve(version, gpu, settings)) / gpu.memory, 3)
    return (of_static(share, model, gpu, settings),
            f"{version.name}: mem_fraction_static = {share:g}, of weights and KV; and the activations")


def of_free(share: float, model: Model, gpu: Gpu, settings: EngineSettings) -> float:
    """The `gpu_memory_utilization` that leaves *share* of what weights and activations leave for the KV cache."""
    part, whole = _rank(model, gpu, settings), gpu.memory
    taken = part.weights + part.activations + RESERVED
    return _bounded((taken + share * max(0.0, whole - taken)) / whole)


def of_static(share: float, model: Model, gpu: Gpu, settings: EngineSettings) -> float:
    """The `gpu_memory_utilization` that leaves *share* of the memory that is free at the start for weights and KV.

    SGLang measures that memory after CUDA has started (model_runner.py, profile_max_num_token), for which `RESERVED`
    stands.
    """
    part, whole = _rank(model, gpu, settings), gpu.memory
    return _bounded((share * (whole - RESERVED) + part.activations + RESERVED) / whole)


def sglang_reserve(version: EngineVersion, gpu: Gpu, settings: EngineSettings) -> float:
    """The bytes that SGLang keeps for activations and CUDA graphs (0.5.8, server_args.py).

    `_handle_gpu_memory_settings` counts 1.5 MiB for each token of a chunk, 2 for each sequence of the largest graph,
    128 for each GPU of an engine, more for each rank of data-parallel attention and for a drafter, and at least 10 GiB.
    """
    assert settings.max_num_batched_tokens, "complete the settings first"
    ranks, graph = settings.data_parallel_size, settings.max_cudagraph_capture_size
    width = 1 + drafted(settings)
    most = graph // width if graph else version.budget(gpu.name, gpu.memory).graph(settings)
    kept: float = 512 + 1.5 * max(settings.max_num_batched_tokens, 2048) + 2 * most + 128 * settings.gpus * ranks
    if ranks > 1:
        kept += most * ranks * (4.5 if most > 300 else 3)
    if gpu.memory > 60 * GIB:
        kept = max(kept, 10 * 1024)
    if (drafts := settings.speculative_config) is not None and drafts.method != "ngram":
        kept += (6 if drafts.method == "draft_model" else 2) * 1024
    return kept * 2.0**20


def _rank(model: Model, gpu: Gpu, settings: EngineSettings) -> Memory:
    return memory(model, shards_of(model, settings)[0], gpu, settings)


def _bounded(share: float) -> float:
    return round(min(1.0, max(0.01, share)), 3)
