"""What a rank's memory holds, and how the layers of a model share one pool of KV blocks there.

The blocks are in vLLM's groups (0.33, v1/core/kv_cache_planning.py).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import lcm
from typing import Any, Self

from attrs import evolve, frozen

from ksim.compute.graph import LayerCache
from ksim.compute.model import Model
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import GIB
from ksim.kv.cache import Group, Kind
from ksim.specs.hardware import Gpu
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Shard

__all__ = ["RESERVED", "CacheGroup", "CacheLayout", "Memory", "has_one_table", "kept_layers", "state_block_tokens"]


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


#: What each rank of each pipeline stage keeps, layer by layer.
Stages = Sequence[Sequence[LayerCache]]


@frozen
class CacheGroup:
    """Layers with one block table: so many in each pipeline stage, each with pages of `page` bytes a block."""

    group: Group
    page: float
    layers: tuple[int, ...]


@frozen
class CacheLayout:
    """The `groups` of a model's layers, the bytes of a block on a rank of each stage, and what is set aside.

    Where all layers share one table, states are not in blocks: `set_aside` are their bytes a sequence, by stage.
    `in_flight` is the most tokens in flight.
    """

    groups: tuple[CacheGroup, ...]
    block_bytes: tuple[float, ...]
    set_aside: tuple[float, ...]
    in_flight: int

    @classmethod
    def of(cls, stages: Stages, settings: EngineSettings) -> Self:
        """The layout of layers by pipeline stage with complete *settings*; raises ConfigError where vLLM refuses."""
        depth, tokens = settings.pipeline_parallel_size + settings.async_scheduling, settings.max_num_batched_tokens
        assert tokens, "complete the settings first"
        kept = [[*stage] for stage in stages]
        set_aside = [0.0] * len(kept)
        if has_one_table([layer for stage in kept for layer in stage], settings):
            set_aside = [sum(layer.sequence_bytes for layer in stage) for stage in kept]
            kept = [[_seeing_all(layer) for layer in stage if layer.token_bytes] for stage in kept]
        groups = tuple(_groups([(index, layer) for index, stage in enumerate(kept) for layer in stage], settings,
                               len(kept)))
        page = [max((group.layers[stage] * group.page for group in groups), default=0.0) for stage in range(len(kept))]
        if len(groups) == 1:  # of pages that may differ
            size = groups[0].group.block_tokens
            page = [sum(layer.token_bytes for layer in stage) * size + sum(layer.sequence_bytes for layer in stage)
                    for stage in kept]
        return cls(groups, tuple(page), tuple(set_aside), depth * tokens)

    @property
    def plain(self) -> bool:
        """Whether all layers see all tokens, so that one block table does."""
        return not self.groups or (len(self.groups) == 1 and self.groups[0].group.kind == "full")

    def table(self) -> list[dict[str, Any]]:
        """Groups that are alike as plain keys and values, with how many there are and the layers of the largest."""
        alike = Counter((group.group.kind, group.group.reach, group.group.block_tokens) for group in self.groups)
        return [{"kind": kind, "reach": reach, "block_tokens": tokens, "groups": count, "layers": max(
            sum(group.layers) for group in self.groups if (group.group.kind, group.group.reach) == (kind, reach))}
            for (kind, reach, tokens), count in alike.items()]

    def blocks(self, free: Sequence[float], sequences: int) -> int:
        """How many blocks fit in *free* bytes of the ranks of each stage, with at most so many *sequences*."""
        return min(int((left - sequences * states) // page) if page else 1 << 40
                   for left, states, page in zip(free, self.set_aside, self.block_bytes, strict=True))

    def whole_request(self, tokens: int) -> int:
        """How many blocks a request of *tokens* tokens holds at most."""
        return sum(group.group.whole_request(self.in_flight, tokens) for group in self.groups)

    def held(self, new: int, context: int) -> int:
        """How many blocks a sequence holds in a step of *new* tokens after *context* ones."""
        return sum(group.group.held(new, context) for group in self.groups)

    def room(self, blocks: int, length: int) -> int:
        """For how many tokens *blocks* blocks have room, in requests of *length* tokens; vLLM's KV cache size."""
        if self.plain:
            return blocks * self.groups[0].group.block_tokens
        return blocks * length // self.whole_request(length)


def has_one_table(layers: Sequence[LayerCache], settings: EngineSettings) -> bool:
    """Whether layers that keep different things share one block table all the same, windows keeping all tokens.

    vLLM does so if told to, and by default where attention is chunked.  ksim does so for transfers of KV, for other
    prefix caches than vLLM's and for other evictions.
    """
    off, windows = settings.disable_hybrid_kv_cache_manager, any(layer.window or layer.chunk for layer in layers)
    if off and windows and any(layer.sequence_bytes for layer in layers):
        raise ConfigError("serve.disable_hybrid_kv_cache_manager",
                          "cannot be true for a model with windows and states: vLLM fails to convert them to one type;"
                          " leave it out")
    if settings.prefix_cache != "vllm" or settings.kv_transfer_config is not None or (
            settings.eviction not in (None, Choice("vllm"))):
        return True
    if not windows or not any(layer.sees_all for layer in layers):
        return False
    return off if off is not None else any(layer.chunk for layer in layers)


def _seeing_all(layer: LayerCache) -> LayerCache:
    return evolve(layer, window=0, chunk=0)


def state_block_tokens(layers: Sequence[LayerCache], block_tokens: int, prefix_caching: bool) -> int:
    """The tokens of a block whose page has room for a state, by vLLM's `_align_hybrid_block_size`.

    It is a multiple of *block_tokens* and, with *prefix_caching*, of the tokens between states that prompts keep.
    """
    states = [layer for layer in layers if layer.sequence_bytes]
    token = max((layer.token_bytes for layer in layers if not layer.sequence_bytes), default=0.0)
    if not states or not token:
        return block_tokens
    multiple = lcm(block_tokens, *(layer.checkpoint or 1 for layer in states if prefix_caching))
    page = max(layer.sequence_bytes for layer in states)
    return multiple * int(-(-page // (multiple * token)))


@frozen
class _Layer:
    """A layer as vLLM's `KVCacheSpec`; equal ones are of one bucket."""

    kind: Kind
    reach: int
    block_tokens: int
    page: float
    bytes: float
    checkpoint: int = 0
    drafts: int = 0
    lookahead: int = 0

    @property
    def alike(self) -> tuple[Kind, int, int]:
        """What layers of one group must have in common, though their pages may differ if there is but one group."""
        return self.kind, self.reach, self.block_tokens

    def padded(self, page: float) -> "_Layer":
        """The layer with pages of *page* bytes: larger blocks, or else padding."""
        if self.kind != "state" and page % self.page == 0:
            return evolve(self, block_tokens=self.block_tokens * int(page // self.page), page=page)
        return evolve(self, page=page)


def _layer(layer: LayerCache, settings: EngineSettings) -> _Layer:
    size = layer.block_tokens or settings.block_size
    assert size and settings.max_model_len, "complete the settings first"
    if not layer.sequence_bytes:
        kind: Kind = "window" if layer.window else "chunk" if layer.chunk else "full"
        return _Layer(kind, layer.window or layer.chunk, size, size * layer.token_bytes, layer.token_bytes)
    page, drafts = layer.sequence_bytes, settings.drafted
    if settings.enable_prefix_caching is False:  # mamba_cache_mode "none"
        return _Layer("full", 0, settings.max_model_len, page, page, drafts=drafts)
    keeps = drafts and settings.speculative_config is not None and settings.speculative_config.keeps_cache
    return _Layer("state", 0, size, page, page, layer.checkpoint, drafts, drafts if keeps else 0)


def kept_layers(model: Model, shard: Shard, gpu: Gpu) -> list[LayerCache]:
    """What each layer of one rank's stage keeps on *gpu*.

    vLLM computes the delta rule of prompts by FlashInfer's kernels on Hopper and later, which keep states on their way.
    """
    on_the_way = gpu.architecture in ("hopper", "blackwell")
    return [layer if on_the_way or layer.checkpoint <= 1 else evolve(layer, checkpoint=0)
            for layer in model.cache_by_layer(shard)]


def _groups(layers: Sequence[tuple[int, LayerCache]], settings: EngineSettings, stages: int) -> Iterator[CacheGroup]:
    """The groups of *layers*, each with its stage: of equal pages, and of equal numbers of layers but for padding."""
    specs = [(stage, _layer(layer, settings)) for stage, layer in layers]
    if any(layer.block_tokens for _, layer in layers):
        yield from _packed(specs, stages)
        return
    if len({spec.alike for _, spec in specs}) > 1:
        page = max(spec.page for _, spec in specs)
        specs = [(stage, spec if spec.page == page else spec.padded(page)) for stage, spec in specs]
        buckets: dict[object, list[tuple[int, _Layer]]] = {}
        for stage, spec in specs:
            buckets.setdefault(spec, []).append((stage, spec))
    else:
        buckets = {None: specs} if specs else {}
    size = _group_size([len(bucket) for bucket in buckets.values()])
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        for first in range(count):  # every count-th layer, so that each stage has some of each group
            yield _group(bucket[first::count], stages)


def _packed(specs: Sequence[tuple[int, _Layer]], stages: int) -> Iterator[CacheGroup]:
    """Groups of pages side by side (`_get_packed_kv_cache_groups`): those of one size are split, down to as many
    layers as a group that repeats a pattern of several sizes has."""
    buckets: dict[object, list[tuple[int, _Layer]]] = {}
    for stage, spec in specs:
        buckets.setdefault(spec.alike, []).append((stage, spec))
    pages = {alike: Counter(spec.page for _, spec in bucket) for alike, bucket in buckets.items()}
    repeats = max((max(sizes.values()) for sizes in pages.values()
                   if len(sizes) > 1 and len({*sizes.values()}) == 1), default=0)
    for alike, bucket in buckets.items():
        count = -(-len(bucket) // repeats) if repeats and len(pages[alike]) == 1 else 1
        for first in range(count):
            members = bucket[first::count]
            page = sum(spec.page for _, spec in members) / len(members)
            yield evolve(_group(members, stages), page=page)


def _group(members: Sequence[tuple[int, _Layer]], stages: int) -> CacheGroup:
    spec = members[0][1]
    held = tuple(sum(stage == index for stage, _ in members) for index in range(stages))
    return CacheGroup(Group(spec.kind, spec.block_tokens, spec.reach, spec.checkpoint, spec.drafts, spec.lookahead),
                      spec.page, held)


def _group_size(counts: Sequence[int]) -> int:
    """How many layers a group has: as many as the rarest kind, or as the most frequent one if that is little more."""
    least, most = min(counts, default=1), max(counts, default=1)
    return most if most < 1.5 * least else least
