"""Multi-head latent attention over all keys or over chosen ones, and the parts that its models share.

Beside it, attention to chosen blocks of keys (MiniMax-M3) and to compressed keys (DeepSeek-V4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import evolve, frozen

from ksim.compute import blocks
from ksim.compute.graph import Op
from ksim.compute.kernels import PHASES, Kernel, OverBatch
from ksim.compute.kernels.basic import BatchedGemm, Gemm, Pointwise
from ksim.compute.kernels.mla import (
    SCALE,
    BlockSparseLayer,
    ChoiceLayer,
    CompressedLayer,
    IndexScores,
    LatentAttention,
    LatentLayer,
    SparseLatentLayer,
)
from ksim.compute.model import LATENT, SPARSE, Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.compute.notation import Operation
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch, Batches
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["AttendBlocks", "AttendCompressed", "ChooseCompressed", "Keep", "PerToken", "AttendLatent", "AttendSparse"]


#: Tokens of a batch: those of decodes; the new ones of prompts, those among them that follow cached ones, and the
#: cached ones that they follow.
TokenKind = Literal["decodes", "prompts", "continued", "cached"]
_COUNTS: Mapping[TokenKind, Callable[[Batch], int]] = {
    "decodes": lambda batch: len(batch.contexts) * batch.width,
    "prompts": lambda batch: sum(new for new, _ in batch.chunks),
    "continued": lambda batch: sum(new for new, context in batch.chunks if context),
    "cached": lambda batch: sum(context for _, context in batch.chunks),
}
#: The same of many batches, as columns.
_AMOUNTS: Mapping[TokenKind, Callable[[Batches], Any]] = {
    "decodes": lambda batches: (np.array([_COUNTS["decodes"](batch) for batch in batches]) if batches.wide
                                else batches.decodes),
    "prompts": lambda batches: batches.chunks.sums(batches.chunks.new),
    "continued": lambda batches: batches.chunks.sums(np.where(batches.chunks.context, batches.chunks.new, 0)),
    "cached": lambda batches: batches.chunks.sums(batches.chunks.context),
}


@frozen(cache_hash=True)
class PerToken:
    """A kernel with as many rows as a batch has `tokens` of a kind; `kernel` is the one for a single row."""

    kernel: Gemm | BatchedGemm | Pointwise
    tokens: TokenKind

    #: Marks what only some batches launch.
    some: ClassVar[bool] = True

    def over(self, batch: Batch) -> Kernel | None:
        return self.of_rows(self.rows(batch))

    def rows(self, batch: Batch) -> int:
        """How many rows *batch* has for it."""
        return _COUNTS[self.tokens](batch) if batch.chunks or self.tokens == "decodes" else 0

    def amounts(self, batches: Batches) -> Any:
        """How many rows each of *batches* has for it, (batches,)."""
        return _AMOUNTS[self.tokens](batches)

    def of_rows(self, rows: int) -> Kernel | None:
        """The kernel of so many *rows*; None for none."""
        return _of_rows(self.kernel, rows) if rows else None


@lru_cache(maxsize=8192)
def _of_rows(kernel: Gemm | BatchedGemm | Pointwise, rows: int) -> Kernel:
    """So many *rows* of *kernel*; batches have the same numbers over and over."""
    if isinstance(kernel, Pointwise):
        return Pointwise(kernel.family, rows * kernel.read_bytes, rows * kernel.write_bytes, rows * kernel.flops,
                         rows * kernel.rows)
    return evolve(kernel, m=rows * kernel.m)


#: From latent vectors to the values and the content of keys of each head.
UP = op("tc,cKw->tKw", "kv_up", parallel="K", part="attention_inputs")
#: What vLLM launches around it: the rotary key, which all heads share, is copied beside the content of each head's key;
#: cached latent vectors are gathered from their blocks; attention over new and over cached tokens is merged.
CONCAT = pointwise("copy", "tKn,tp->tKd", "k_concat", parallel="K")
GATHER = pointwise("copy", "tb->tb", "context_gather", reads="cache")
MERGE = pointwise("merge", "tKv,tKv->tKv", "merge", parallel="K")


@frozen
class AttendLatent:
    """``tKd,zb->tKv``: prompts over expanded keys and values, decodes over the latent vectors, as in vLLM.

    For prompts, all keys and values are expanded, cached ones after a gather.  For decodes, the same weights are
    absorbed into queries and outputs (`q_absorb`, `v_up`), in BF16 whatever format they are stored in.  Every rank
    caches the whole latent vector.
    """

    label: str = "attention"
    parallel: str = "K"

    attends: ClassVar[str] = LATENT
    parameters, weights = UP.parameters, UP.weights

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a latent vector and its rotary key."""
        return sizes.volume("b") * shard.precision.cache.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        heads, content, rotary, value, latent = (local.of[index] for index in "Knpvc")
        for operation in (UP, CONCAT):
            yield from _per_token(operation, sizes, shard, "prompts")
        for operation in (GATHER, evolve(UP, label="context_kv_up"), evolve(CONCAT, label="context_k_concat")):
            yield from _per_token(operation, sizes, shard, "cached")
        shape = (heads, content, rotary, value, latent, shard.precision.cache)
        yield Op(f"{self.label}_prompts", LatentLayer(LatentAttention("expanded", *shape)))
        yield from _per_token(MERGE, sizes, shard, "continued")
        yield Op("q_absorb", PerToken(BatchedGemm(heads, 1, latent, content), "decodes"))
        yield Op(f"{self.label}_decodes", LatentLayer(LatentAttention("absorbed", *shape)))
        yield Op("v_up", PerToken(BatchedGemm(heads, 1, value, latent), "decodes"))


@frozen
class AttendSparse:
    """``tKd,zb->tKv`` over the `chosen` keys that score best for a query, by an indexer of k heads of size j.

    The expansion is absorbed for prompts and decodes alike.  A token caches its latent vector and the indexer's key.
    A layer without an indexer of its `own` attends to the keys that the last one chose.
    """

    chosen: int
    own: bool = True
    label: str = "attention"
    parallel: str = "K"

    attends: ClassVar[str] = SPARSE
    parameters, weights = UP.parameters, UP.weights

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a latent vector, its rotary key and the indexer's key with its scale.

        In FP8 (vLLM's fp8_ds_mla) the rotary key stays in BF16, and each 128 latent numbers have a scale.
        """
        latent, rotary, index = (sizes.of[name] for name in "cpj")
        if shard.precision.cache is DType.FP8:
            latent_bytes = latent + SCALE * latent / 128 + rotary * DType.BF16.bytes
        else:
            latent_bytes = (latent + rotary) * shard.precision.cache.bytes
        return latent_bytes + (index + SCALE if self.own else 0)

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        tokens, heads, content, rotary, value, latent = (local.of[index] for index in "tKnpvc")
        for phase in PHASES if self.own else ():
            yield Op(f"index_{phase}", OverBatch(IndexScores(phase, local.of["k"], local.of["j"])))
            yield Op(f"choose_{phase}", ChoiceLayer(phase, self.chosen))
        yield Op("q_absorb", BatchedGemm(heads, tokens, latent, content))
        yield Op(self.label, SparseLatentLayer(heads, latent, rotary, self.chosen, shard.precision.cache))
        yield Op("v_up", BatchedGemm(heads, tokens, value, latent))


def _per_token(operation: Product | Elementwise, sizes: Sizes, shard: Shard, tokens: TokenKind) -> Iterator[Op]:
    """The launches of *operation* for as many tokens of a kind as a batch has."""
    for launch in operation.lower(Sizes({**sizes.of, "t": 1}), shard):
        assert isinstance(launch.kernel, Gemm | Pointwise)
        yield Op(launch.label, PerToken(launch.kernel, tokens))


def decoder(config: Config, attention: Sequence[blocks.Operations],
            more: Mapping[str, int] = MappingProxyType({})) -> Decoder:
    """A model with the latent *attention* of each layer, first a few dense layers and then mixtures of experts.

    *more* are sizes of further indices.
    """
    blocks.only(config, moe_layer_freq=1, attention_bias=False)
    dense, size = config.count("first_k_dense_replace"), config.need("moe_intermediate_size")
    dense_mlp = blocks.gated_mlp(config)
    corrected = config.get("topk_method", "noaux_tc") == "noaux_tc"
    for key in ("head_dim", "qk_head_dim"):
        config.value(key)  # what the sizes of latent attention say in other words
    mixture = blocks.experts(config, shared=blocks.shared_experts(config), corrected=corrected)
    kinds = [(id(inner), inner, number < dense) for number, inner in enumerate(attention)]
    made = {(key, first): blocks.layer(inner, dense_mlp if first else mixture) for key, inner, first in kinds}
    layers = [made[key, first] for key, _, first in kinds]
    shared = size * config.need("n_shared_experts")
    return blocks.mixture(config, layers, tied=False, S=shared, **sizes(config), **more)


#: The projections of queries, and down to the latent vectors, with their norms.
LOW_RANK_QUERIES = (
    op("tm,mu->tu", "qkv_down", part="attention_inputs"),
    pointwise("rms_norm", "tq->tq", "q_norm", scale="q"),
    pointwise("rms_norm", "tc->tc", "kv_norm", scale="c"),
    op("tq,qKd->tKd", "q_up", parallel="K", part="attention_inputs"),
)
WHOLE_QUERIES = (
    op("tm,mKd->tKd", "q_proj", parallel="K", part="attention_inputs"),
    op("tm,mb->tb", "kv_down", part="attention_inputs"),
    pointwise("rms_norm", "tc->tc", "kv_norm", scale="c"),
)


def attention(config: Config, *attend: Operation) -> blocks.Operations:
    """Multi-head latent attention, from the normed hidden state to the output projection.

    One product, which every rank computes, projects queries, keys and values down, as in vLLM; without a `q_lora_rank`,
    queries are projected by one of their own.  *attend* replaces attention over all keys.
    """
    inputs = WHOLE_QUERIES if config.value("q_lora_rank") is None else LOW_RANK_QUERIES
    return (
        *inputs,
        pointwise("rope", "tKp,tp->tKp,tp", "rope", parallel="K"),
        pointwise("kv_write", "tb->tb", "kv_write", writes="cache"),
        *(attend or (AttendLatent(),)),
        op("tKv,Kvm->tm", "o_proj", parallel="K", part="attention"),
    )


def sparse_attention(config: Config) -> blocks.Operations:
    """Latent attention over the keys that a lightning indexer chooses, which every rank computes whole, as in vLLM."""
    return (
        op("tq,qkj->tkj", "index_q", part="attention_inputs"),
        op("tm,ma->ta", "index_k", quantized=False),
        pointwise("layer_norm", "tj->tj", "index_norm", scale="j,j"),
        pointwise("rope", "tkj,tj->tkj,tj", "index_rope"),
        pointwise("quantize", "tkj->tkj", "index_quantize", writes="fp8"),
        pointwise("kv_write", "tj->ty", "index_write", writes="fp8"),
        AttendSparse(config.need("index_topk")),
    )


def shared_choice(config: Config) -> blocks.Operations:
    """Latent attention over the keys that the indexer of an earlier layer chose."""
    return (AttendSparse(config.need("index_topk"), own=False),)


def sparse_sizes(config: Config) -> dict[str, int]:
    """The sizes of the indexer, by their usual names in config.json."""
    heads, size = config.need("index_n_heads"), config.need("index_head_dim")
    return {"k": heads, "j": size, "a": size + heads, "y": size + SCALE}


def sizes(config: Config) -> dict[str, int]:
    """The sizes of latent attention, by their usual names in config.json."""
    whole = config.value("q_lora_rank") is None
    rank, latent = 0 if whole else config.need("q_lora_rank"), config.need("kv_lora_rank")
    content, rotary = config.need("qk_nope_head_dim"), config.need("qk_rope_head_dim")
    value, cached = config.need("v_head_dim"), latent + rotary
    return {"q": rank, "c": latent, "p": rotary, "n": content, "v": value, "b": cached, "u": rank + cached,
            "d": content + rotary, "w": content + value}


@frozen
class Keep:
    """Something of every token that every rank keeps: a `tensor` of numbers, whose kernel writes it.

    One for every `stride` tokens counts for each with its share.  Latent vectors (`rotary` numbers of which stay in
    BF16) and keys of indexers have scales in FP8, as in vLLM's fp8_ds_mla; the states of compressors are in FP32.  With
    a `window`, only those of the last so many tokens are kept.  `block_tokens` is how many a block has, if the engine
    does not decide.
    """

    tensor: str
    label: str
    stride: int = 1
    window: int = 0
    rotary: str = ""
    format: DType | None = None
    block_tokens: int = 0

    @property
    def attends(self) -> str:
        kept = self.label.removesuffix("_write").replace("_", " ")
        return f"{kept} of the last {self.window}" if self.window else kept

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of the `tensor`, by its format or the cache's."""
        numbers, format_ = sizes.volume(self.tensor), self.format or shard.precision.cache
        if self.rotary and format_ is DType.FP8:
            kept = sizes.volume(self.rotary)
            return (numbers - kept + kept * DType.BF16.bytes + (numbers + 63) // 64) / self.stride
        scales = SCALE if self.format is DType.FP8 else 0
        return (numbers * format_.bytes + scales) / self.stride

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        tokens, each = sizes.of["t"], self.cache_per_token(sizes, shard)
        read = tokens * sizes.volume(self.tensor) * DType.BF16.bytes / self.stride
        yield Op(self.label, Pointwise("kv_write", read, tokens * each, read / DType.BF16.bytes, tokens))


@frozen
class AttendCompressed:
    """``tKh,zh->tKh``: K heads of size h share keys, which are values, too: a window of them and compressed ones.

    Each head has a weight that takes part in its softmax, in FP32.
    """

    window: int
    stride: int = 0
    chosen: int = 0
    label: str = "attention"
    parallel: str = "K"

    part: ClassVar[str] = "attention"
    by_block: ClassVar[bool] = True

    def parameters(self, sizes: Sizes) -> int:
        return sizes.of["K"]

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * self.format.bytes

    format: ClassVar[DType] = DType.FP32

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor).of
        yield Op(self.label, CompressedLayer(local["K"], local["h"], self.window, self.stride, self.chosen,
                                             shard.precision.cache))


@frozen
class ChooseCompressed:
    """An indexer of k heads of size j over keys of `stride` tokens each, in FP8; every rank has all of its heads."""

    stride: int
    chosen: int
    label: str = "index"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        for phase in PHASES:
            yield Op(f"{self.label}_{phase}", OverBatch(IndexScores(phase, sizes.of["k"], sizes.of["j"], self.stride)))
            yield Op(f"choose_{phase}", ChoiceLayer(phase, self.chosen, self.stride))


@frozen
class AttendBlocks:
    """``tKrh,zKh,zKh->tKrh`` over the `blocks` of `size` keys that score best for the queries of a KV head.

    An indexer of a head of size j for each KV head scores all keys, of which all heads share one, in BF16; a block has
    the best score of its keys.  A token caches a key and a value for each KV head.
    """

    blocks: int
    size: int
    label: str = "attention"
    parallel: str = "K"

    attends: ClassVar[str] = "attention to blocks"
    by_block: ClassVar[bool] = True

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a key and a value for each KV head on one rank."""
        local = sizes.split(self.parallel, shard.tensor)
        return 2 * local.volume("Kh") * shard.precision.cache.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        heads, scores = local.of["K"], local.of["K"] / self.size
        for phase in PHASES:
            yield Op(f"index_{phase}", OverBatch(IndexScores(phase, heads, local.of["j"], format=DType.BF16,
                                                  written=scores * DType.FP32.bytes)))
            yield Op(f"choose_{phase}", ChoiceLayer(phase, self.blocks * heads, 1 / scores))
        yield Op(self.label, BlockSparseLayer(local.volume("Kr"), heads, local.of["h"], self.blocks * self.size,
                                              shard.precision.cache))


