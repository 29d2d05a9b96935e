"""How many KV blocks a GPU has room for, and the scheduler's limits: what vLLM works out when it starts.

Where nobody says it, as `gpu_memory_utilization`, engines differ in the share of a GPU's memory that they use.  vLLM's
default is a share of all memory, for weights, activations and KV.  TensorRT-LLM gives KV a share of what weights and
the largest step leave free; SGLang computes a share for weights and KV.  Both are converted here to vLLM's.

`pack` puts engines onto equal nodes, and says which GPUs each of them has.
"""

from bisect import bisect_right
from collections.abc import Sequence

import attrs

from ksim.compute.graph import Collective, bind
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import Gemm, GroupedGemm, Pointwise
from ksim.compute.model import Model
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.foundation.units import GIB, DType
from ksim.scenario.cache_layout import RESERVED, CacheLayout, Memory, kept_layers
from ksim.scenario.features import features_of
from ksim.scheduling.job import Limits
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings, EngineVersion
from ksim.specs.shard import Routing, Shard

__all__ = ["of_free", "of_static", "utilization", "pack", "activations", "shards_of", "usable", "memory",
           "layout_of", "kv_blocks", "longest_request", "check_step", "limits", "sglang_pool"]


#: The memory of states over that of KV, by default, in SGLang (`--mamba-full-memory-ratio`).
STATES_SHARE = 0.9
#: How many tokens vLLM takes through an expert layer at a time (VLLM_FUSED_MOE_CHUNK_SIZE).
EXPERT_TOKENS = 16 * 1024


def activations(model: Model, batch: Batch, logits: int, shard: Shard) -> float:
    """Bytes that a step of *batch* with so many rows of *logits* needs beside weights and cache.

    They are the residual stream, hidden states, and what the largest kernel reads and writes.
    """
    streams = 2 * batch.tokens * model.decoder.sizes["m"] * DType.BF16.bytes
    blocks = model.graph(batch.tokens, logits, shard).blocks
    kernels = (bind(op.kernel, batch) for block in blocks for op in block.ops)
    return streams + max(_working_set(kernel) for kernel in kernels)


def _working_set(kernel: Kernel | Collective | None) -> float:
    """Bytes of activations that *kernel* reads and writes; those of attention are small, and left out."""
    if isinstance(kernel, Gemm):
        return kernel.m * (kernel.k + kernel.n) * DType.BF16.bytes
    if isinstance(kernel, GroupedGemm):
        chunk = min(1.0, EXPERT_TOKENS / kernel.tokens)
        return chunk * kernel.rows * (kernel.k + kernel.n) * DType.BF16.bytes
    return kernel.work.bytes if isinstance(kernel, Pointwise) else 0.0


def shards_of(model: Model, serve: EngineSettings, routing: Routing | None = None) -> list[Shard]:
    """One rank's share of *model* in each pipeline stage."""
    data = serve.data_parallel_size if model.decoder.top_k else 1  # without experts, ranks share nothing
    return [Shard(
        tensor=serve.tensor_parallel_size, stage=stage, stages=serve.pipeline_parallel_size,
        precision=serve.precision, data=data, expert_parallel=serve.enable_expert_parallel,
        exchange=serve.all2all_backend, routing=routing or Routing(), slices=serve.slices, placement=serve.placement,
        drafts=serve.drafted, nvfp4_dispatch=serve.moe_nvfp4_dispatch)
            for stage in range(serve.pipeline_parallel_size)]


def usable(gpu: Gpu, settings: EngineSettings) -> float:
    """Bytes of *gpu*'s memory that an engine may use; all where its settings do not say yet."""
    return gpu.memory * (settings.gpu_memory_utilization or 1.0)


def memory(model: Model, shard: Shard, gpu: Gpu, settings: EngineSettings) -> Memory:
    """How one rank's memory is divided, as vLLM finds out by a profiling run of the largest batch."""
    assert settings.max_num_batched_tokens and settings.max_num_seqs, "complete the settings first"
    tokens, sequences = settings.max_num_batched_tokens, settings.max_num_seqs
    target = Memory(
        usable=usable(gpu, settings),
        weights=model.weights(shard),
        activations=activations(model, Batch.of((tokens, 0)), min(sequences, tokens), shard),
        layers=tuple(kept_layers(model, shard, gpu)),
    )
    for feature in features_of(model, settings):
        target = feature.memory(target, model, shard, settings)
    return target


def layout_of(ranks: Sequence[Memory], settings: EngineSettings) -> CacheLayout:
    """How the layers of all stages, a rank of each, share the KV blocks; raises ConfigError for what vLLM refuses."""
    return CacheLayout.of([rank.layers for rank in ranks], settings)


def kv_blocks(model: Model, shards: list[Shard], gpu: Gpu, settings: EngineSettings, system: System) -> int:
    """How many KV blocks each rank has; raises DoesNotFit, which says what is missing and what would help."""
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override - 1  # vLLM's null block is never handed out
    if settings.sglang is not None and settings.block_size:
        tokens, _ = sglang_pool(model, shards, gpu, settings)
        if tokens >= 2 * settings.block_size:
            return tokens // settings.block_size
    ranks = [memory(model, shard, gpu, settings) for shard in shards]
    layout, sequences = layout_of(ranks, settings), settings.max_num_seqs or 1
    blocks = layout.blocks([rank.free for rank in ranks], sequences)
    if blocks < 2:
        raise DoesNotFit(_shortage(model, gpu, settings, system, ranks, layout))
    longest = settings.max_model_len or model.max_length
    if (needed := layout.whole_request(longest)) > blocks - 1:
        raise DoesNotFit(_too_long(ranks, layout, longest, needed, blocks - 1))
    return blocks - 1


def longest_request(model: Model, gpu: Gpu, settings: EngineSettings) -> int | None:
    """The most tokens of a request that the KV cache holds; None where the number of blocks is set, or none fits."""
    if settings.num_gpu_blocks_override is not None:
        return None
    ranks = [memory(model, shard, gpu, settings) for shard in shards_of(model, settings)]
    layout, longest = layout_of(ranks, settings), settings.max_model_len or model.max_length
    blocks = layout.blocks([rank.free for rank in ranks], settings.max_num_seqs or 1)
    return _most_tokens(layout, longest, blocks - 2) if blocks > 2 else None


def _most_tokens(layout: CacheLayout, longest: int, blocks: int) -> int:
    """The most tokens, below *longest*, of a request that fits into so many *blocks*."""
    return bisect_right(range(longest + 1), blocks, key=layout.whole_request) - 1


def _too_long(ranks: Sequence[Memory], layout: CacheLayout, longest: int, needed: int, blocks: int) -> str:
    """Why a request of *longest* tokens, which needs so many blocks, does not fit in *blocks*."""
    page = max(layout.block_bytes)
    most = _most_tokens(layout, longest, blocks)
    size = layout.groups[0].group.block_tokens
    if layout.plain:
        token = min(ranks, key=lambda rank: rank.blocks(size)).cache_per_token
        return (f"one sequence of max_model_len = {longest} tokens needs {longest * token / GIB:.2f} GiB of KV cache a"
                f" GPU, and {blocks * size * token / GIB:.2f} GiB are left: set max_model_len to at most"
                f" {blocks * size}, or raise gpu_memory_utilization or tensor_parallel_size")
    return (f"one sequence of max_model_len = {longest} tokens needs {needed * page / GIB:.2f} GiB of KV cache a GPU,"
            f" {needed} blocks for {len(layout.groups)} groups of layers, and {blocks * page / GIB:.2f} GiB are left:"
            f" set max_model_len to at most {max(most, 0)}, or raise gpu_memory_utilization or tensor_parallel_size")


def check_step(model: Model, shards: list[Shard], gpu: Gpu, settings: EngineSettings, system: System,
               batch: Batch) -> None:
    """Raise DoesNotFit where a GPU cannot hold its weights and the KV cache of *batch*'s sequences."""
    sequences = [*batch.chunks, *((batch.width, context) for context in batch.contexts)]
    longest = max(new + context for new, context in sequences)
    settings = attrs.evolve(settings, max_model_len=max(longest, 2))
    blocks = kv_blocks(model, shards, gpu, settings, system)
    layout = layout_of([memory(model, shard, gpu, settings) for shard in shards], settings)
    needed = sum(layout.held(new, context) for new, context in sequences)
    if needed > blocks:
        priced = "" if settings.sglang else f", or set num_gpu_blocks_override to {needed + 1} to price it all the same"
        raise DoesNotFit(f"the sequences of this step need {needed} KV blocks of {settings.block_size} tokens, and"
                         f" {gpu.name} has room for {blocks} beside {model.name}: take fewer or shorter ones, or raise"
                         f" tensor_parallel_size{priced}")


def _shortage(model: Model, gpu: Gpu, settings: EngineSettings, system: System, ranks: Sequence[Memory],
              layout: CacheLayout) -> str:
    aside = [states * (settings.max_num_seqs or 1) for states in layout.set_aside]
    part, states = min(zip(ranks, aside, strict=True), key=lambda rank: rank[0].free - rank[1])
    fitting = [ways for ways in (2**i for i in range(11)) if ways > settings.tensor_parallel_size
               and ways <= system.gpus and _fits(model, gpu, settings, ways)]
    advice = (f"tensor_parallel_size = {fitting[0]} would fit" if fitting
              else f"no tensor_parallel_size up to the {system.gpus} GPUs of {system.name} would fit")
    from ksim.compute.adapters import slots_of  # only an error asks

    slots = sum(slots_of(model, shard) for shard in shards_of(model, settings)) / settings.pipeline_parallel_size
    adapters = f", with {slots / GIB:.1f} of slots for max_loras = {settings.max_loras} adapters" if slots else ""
    share = f"mem_fraction_static = {settings.sglang.mem_fraction_static}" if settings.sglang else (
        f"gpu_memory_utilization = {settings.gpu_memory_utilization}")
    kept = f", {states / GIB:.1f} of max_num_seqs = {settings.max_num_seqs} states" if states else ""
    return (f"{model.name} does not fit: {part.weights / GIB:.1f} GiB of weights{adapters},"
            f" {part.activations / GIB:.1f} of activations{kept} and {RESERVED / GIB:.1f} reserved exceed the"
            f" {part.usable / GIB:.1f} GiB that"
            f" {share} leaves on a {gpu.name} by"
            f" {max(states - part.free, 0.0) / GIB:.1f} GiB; {advice}")


def _fits(model: Model, gpu: Gpu, settings: EngineSettings, ways: int) -> bool:
    """Whether one sequence of the full length fits at this tensor-parallel size."""
    data = settings.data_parallel_size if model.decoder.top_k else 1
    shard = Shard(tensor=ways, precision=settings.precision, data=data,
                  expert_parallel=settings.enable_expert_parallel,
                  slices=ways * data // (settings.expert_parallel_size or ways * data) or 1,
                  placement=settings.placement)
    try:
        part = memory(model, shard, gpu, settings)
    except ConfigError:  # a size that does not divide the heads, or among which experts do not divide
        return False
    layout = layout_of([part], settings)
    return layout.blocks([part.free], settings.max_num_seqs or 1) > layout.whole_request(settings.max_model_len or 1)


def limits(settings: EngineSettings, version: EngineVersion) -> Limits:
    """The scheduler's limits from complete *settings*; raises ConfigError for what vLLM refuses."""
    shared = {name: getattr(settings, name) for name in attrs.fields_dict(Limits) if hasattr(settings, name)}
    kept = Limits(**shared, cap_binds_lone_request=version.cap_binds_lone_request,
                  self_preemption_ends_turn=version.self_preemption_ends_turn)
    if version.scheduler == "vllm":
        kept.check()
    return kept


def utilization(version: EngineVersion, model: Model, gpu: Gpu, settings: EngineSettings) -> tuple[float, str]:
    """The share by default, and where it comes from; *settings* are complete but for it."""
    if version.gpu_memory_utilization is not None:
        return version.gpu_memory_utilization, version.name
    if version.free_gpu_memory_fraction is not None:
        share = version.free_gpu_memory_fraction
        return (of_free(share, model, gpu, settings),
                f"{version.name}: free_gpu_memory_fraction = {share:g}, of what weights and activations leave")
    raise AssertionError(f"{version.name} states no share of the memory")


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
    return round(min(1.0, max(0.01, (share * (whole - RESERVED) + part.activations + RESERVED) / whole)), 6)


def sglang_pool(model: Model, shards: Sequence[Shard], gpu: Gpu, settings: EngineSettings) -> tuple[int, int | None]:
    """The tokens of SGLang's KV cache on each rank, and its slots for states of sequences, if layers have any.

    *settings* have `sglang` complete but for `max_running_requests`.  KV has what `mem_fraction_static` leaves beside
    weights, and states 0.9 of 1.9 parts of that; layers with a pool for windows have `swa_full_tokens_ratio` of the
    tokens (0.5.23, model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py).
    """
    given = settings.sglang
    assert given is not None and given.mem_fraction_static and given.page_size, "complete the settings first"
    windows = 1.0 if given.disable_hybrid_swa_memory else given.swa_full_tokens_ratio or 1.0
    tokens, slots = [], []
    for shard in shards:
        rank = memory(model, shard, gpu, settings)
        free = given.mem_fraction_static * (gpu.memory - RESERVED) - rank.weights
        if states := sum(layer.sequence_bytes for layer in rank.layers):
            slots.append(max(0, int((free * STATES_SHARE / (1 + STATES_SHARE) - states) // states)))
            free -= (slots[-1] + 1) * states
        cell = sum(layer.token_bytes * (1.0 if layer.sees_all else windows) for layer in rank.layers)
        if cell:
            tokens.append(max(0, int(free // cell)))
    most = min([*tokens, *([given.max_total_tokens] if given.max_total_tokens else [])], default=1 << 40)
    return most // given.page_size * given.page_size, min(slots, default=None)


def _rank(model: Model, gpu: Gpu, settings: EngineSettings) -> Memory:
    return memory(model, shards_of(model, settings)[0], gpu, settings)


def _bounded(share: float) -> float:
    return round(min(1.0, max(0.01, share)), 3)


def pack(sizes: Sequence[int], per_node: int) -> tuple[list[int], int]:
    """The first GPU of each of the engines with so many GPUs, and how many GPUs they reach over.

    Engines lie in order.  One that fits into a node never straddles two, and one that does not begins with a node.
    """
    firsts, free = [], 0
    for size in sizes:
        left = per_node - free % per_node
        if left < size and left < per_node:
            free += left
        firsts.append(free)
        free += size
    return firsts, free
