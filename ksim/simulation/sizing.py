"""How many KV blocks a GPU has room for, and the scheduler's limits: what vLLM works out when it starts."""

from bisect import bisect_right
from collections.abc import Sequence

import attrs
from attrs import frozen

from ksim.compute.adapters import slots_of
from ksim.compute.drafters.drafter import Drafter
from ksim.compute.model import Model
from ksim.flow.batch import Batch
from ksim.flow.layer_cache import LayerCache
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.foundation.units import GIB
from ksim.scheduling.limits import Limits
from ksim.simulation.activations import activations
from ksim.simulation.cache_layout import CacheLayout, kept_layers
from ksim.simulation.drafters import drafter_of, drafter_shard, hidden_states
from ksim.simulation.speculation import drafted
from ksim.simulation.vision import Vision, vision_of
from ksim.specs.engine import EngineVersion
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Routing, Shard

#: The CUDA context, NCCL, cuBLAS workspaces and captured graphs on each GPU: the memory that two H200 runs of vLLM 0.22
#: used (llama-3.1-8b, qwen3-30b-a3b), less weights, KV cache and the activations below.
RESERVED = 0.8 * GIB


@frozen
class Memory:
    """One rank's memory, in bytes."""

    usable: float
    weights: float
    activations: float
    layers: tuple[LayerCache, ...]

    @property
    def cache_per_token(self) -> float:
        """Bytes that a token takes in all layers that see it."""
        return sum(layer.token_bytes for layer in self.layers)

    @property
    def free(self) -> float:
        """Bytes left for KV blocks."""
        return self.usable - self.weights - self.activations - RESERVED

    def blocks(self, block_tokens: int) -> int:
        """How many KV blocks fit, where all layers see all tokens."""
        return int(self.free // (self.cache_per_token * block_tokens))


def shards_of(model: Model, serve: EngineSettings, routing: Routing | None = None) -> list[Shard]:
    """One rank's share of *model* in each pipeline stage."""
    data = serve.data_parallel_size if model.decoder.top_k else 1  # without experts, ranks share nothing
    return [Shard(
        tensor=serve.tensor_parallel_size, stage=stage, stages=serve.pipeline_parallel_size,
        precision=serve.precision, data=data, expert_parallel=serve.enable_expert_parallel,
        exchange=serve.all2all_backend, routing=routing or Routing(), slices=serve.slices, placement=serve.placement,
        drafts=drafted(serve))
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
    if shard.first and (vision := vision_of(model, settings)):
        target = _with_encoder(target, vision)
    drafter = drafter_of(model, settings) if shard.last else None
    if drafter is None:
        return target
    return _with_drafter(target, model, drafter, drafter_shard(drafter, settings, shard), settings)


def _with_encoder(target: Memory, vision: Vision) -> Memory:
    """The memory of a rank with a *vision* encoder: vLLM profiles the largest batch of images, and then the decoder
    with the embeddings that were kept."""
    return attrs.evolve(target, weights=target.weights + vision.weights,
                        activations=max(target.activations + vision.cache, vision.activations))


def _with_drafter(target: Memory, model: Model, drafter: Drafter, shard: Shard, settings: EngineSettings) -> Memory:
    """The memory of a rank that has a *drafter*, of which it holds *shard*, beside its target.

    Their steps alternate, so the activations of one use the room of the other's.
    """
    tokens, sequences = settings.max_num_batched_tokens or 0, settings.max_num_seqs or 0
    own = activations(drafter.first, Batch.of((tokens, 0)), min(sequences, tokens), shard)
    return attrs.evolve(
        target, weights=target.weights + drafter.weights(shard),
        activations=max(target.activations, own) + hidden_states(model, drafter, tokens),
        layers=(*target.layers, *drafter.cache_by_layer(shard)))


def layout_of(ranks: Sequence[Memory], settings: EngineSettings) -> CacheLayout:
    """How the layers of all stages, a rank of each, share the KV blocks; raises ConfigError for what vLLM refuses."""
    return CacheLayout.of([rank.layers for rank in ranks], settings)


def kv_blocks(model: Model, shards: list[Shard], gpu: Gpu, settings: EngineSettings, system: System) -> int:
    """How many KV blocks each rank has; raises DoesNotFit, which says what is missing and what would help."""
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override - 1  # vLLM's null block is never handed out
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
        raise DoesNotFit(f"the sequences of this step need {needed} KV blocks of {settings.block_size} tokens, and"
                         f" {gpu.name} has room for {blocks} beside {model.name}: take fewer or shorter ones, or raise"
                         f" tensor_parallel_size, or set num_gpu_blocks_override to {needed + 1} to price it all the"
                         f" same")


def _shortage(model: Model, gpu: Gpu, settings: EngineSettings, system: System, ranks: Sequence[Memory],
              layout: CacheLayout) -> str:
    aside = [states * (settings.max_num_seqs or 1) for states in layout.set_aside]
    part, states = min(zip(ranks, aside, strict=True), key=lambda rank: rank[0].free - rank[1])
    fitting = [ways for ways in (2**i for i in range(11)) if ways > settings.tensor_parallel_size
               and ways <= system.gpus and _fits(model, gpu, settings, ways)]
    advice = (f"tensor_parallel_size = {fitting[0]} would fit" if fitting
              else f"no tensor_parallel_size up to the {system.gpus} GPUs of {system.name} would fit")
    slots = sum(slots_of(model, shard) for shard in shards_of(model, settings)) / settings.pipeline_parallel_size
    adapters = f", with {slots / GIB:.1f} of slots for max_loras = {settings.max_loras} adapters" if slots else ""
    kept = f", {states / GIB:.1f} of max_num_seqs = {settings.max_num_seqs} states" if states else ""
    return (f"{model.name} does not fit: {part.weights / GIB:.1f} GiB of weights{adapters},"
            f" {part.activations / GIB:.1f} of activations{kept} and {RESERVED / GIB:.1f} reserved exceed the"
            f" {part.usable / GIB:.1f} GiB that"
            f" gpu_memory_utilization = {settings.gpu_memory_utilization} leaves on a {gpu.name} by"
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
    kept.check()
    return kept
