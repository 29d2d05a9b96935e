"""Attention to chosen blocks of keys (MiniMax-M3) and to compressed keys (DeepSeek-V4), and what they keep."""

from collections.abc import Iterator
from typing import ClassVar

from attrs import frozen

from ksim.compute.graph import Op
from ksim.compute.kernels import PHASES
from ksim.compute.kernels.block_sparse import BlockSparseLayer
from ksim.compute.kernels.compressed_mla import CompressedLayer
from ksim.compute.kernels.index_scores import SCALE, ChoiceLayer, IndexLayer
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.model import Model
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["AttendBlocks", "AttendCompressed", "ChooseCompressed", "Keep", "attends_sparsely"]


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
            yield Op(f"{self.label}_{phase}", IndexLayer(phase, sizes.of["k"], sizes.of["j"], self.stride))
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

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a key and a value for each KV head on one rank."""
        local = sizes.split(self.parallel, shard.tensor)
        return 2 * local.volume("Kh") * shard.precision.cache.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        heads, scores = local.of["K"], local.of["K"] / self.size
        for phase in PHASES:
            yield Op(f"index_{phase}", IndexLayer(phase, heads, local.of["j"], format=DType.BF16,
                                                  written=scores * DType.FP32.bytes))
            yield Op(f"choose_{phase}", ChoiceLayer(phase, self.blocks * heads, 1 / scores))
        yield Op(self.label, BlockSparseLayer(local.volume("Kr"), heads, local.of["h"], self.blocks * self.size,
                                              shard.precision.cache))


def attends_sparsely(model: Model) -> bool:
    """Whether any layer of *model* attends so: no measurement of these kernels ships."""
    return any(isinstance(operation, AttendBlocks | AttendCompressed) for layer in model.decoder.layers
               for operation in layer)
