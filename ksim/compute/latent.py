"""Multi-head latent attention as an operation of a model, of all keys or of the best; one set of weights."""

from collections.abc import Iterator

from attrs import evolve, frozen

from ksim.compute.einsum import Einsum, Map, op
from ksim.compute.graph import Op
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.index_scores import SCALE, ChoiceLayer, IndexLayer, Part
from ksim.compute.kernels.mla import LatentLayer
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.kernels.sparse_mla import SparseLatentLayer
from ksim.compute.layers import Rows, Tokens
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.deployment import Shard

#: From latent vectors to the content of keys and to values, head by head.
UP = op("tc,cKw->tKw", "kv_up", parallel="K", part="attention")
#: What vLLM launches around it: the rotary key, which all heads share, is put beside the content of each; what is
#: cached is gathered from its blocks; what new tokens and cached ones gave is merged.
CONCAT = Map("copy", "tKn,tp->tKd", "k_concat", parallel="K")
GATHER = Map("copy", "tb->tb", "context_gather", reads="cache")
MERGE = Map("merge", "tKv,tKv->tKv", "merge", parallel="K")
#: What the indexer scores in launches of their own.
PARTS: tuple[Part, ...] = ("prompts", "decodes")


@frozen
class AttendLatent:
    """``tKd,zb->tKv``: prompts over expanded keys and values, decodes over the latent vectors, as in vLLM.

    Of prompts, whatever they attend to is expanded, the cached part gathered before; decodes have the same weights
    applied to their queries and outputs instead (`q_absorb`, `v_up`), in BF16 whatever format they are stored in.
    What a token caches is the same on every rank.
    """

    label: str = "attention"
    parallel: str = "K"

    def parameters(self, sizes: Sizes) -> int:
        return UP.parameters(sizes)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return UP.weights(sizes, shard)

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a latent vector and its rotary key."""
        return sizes.volume("b") * shard.precision.cache.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        heads, content, rotary, value, latent = (local.of[index] for index in "Knpvc")
        for operation in (UP, CONCAT):
            yield from _rows(operation, sizes, shard, "prompts")
        for operation in (GATHER, evolve(UP, label="context_kv_up"), evolve(CONCAT, label="context_k_concat")):
            yield from _rows(operation, sizes, shard, "cached")
        shape = (heads, content, rotary, value, latent, shard.precision.cache)
        yield Op(f"{self.label}_prompts", LatentLayer("expanded", *shape))
        yield from _rows(MERGE, sizes, shard, "continued")
        yield Op("q_absorb", Rows(BatchedGemm(heads, 1, latent, content), "decodes"))
        yield Op(f"{self.label}_decodes", LatentLayer("absorbed", *shape))
        yield Op("v_up", Rows(BatchedGemm(heads, 1, value, latent), "decodes"))


@frozen
class AttendSparse:
    """``tKd,zb->tKv`` over the best `chosen` of what each query sees, as an indexer of k heads of size j scores it.

    Prompts and decodes alike have the expansion absorbed.  Beside a latent vector, a token caches the indexer's key.
    """

    chosen: int
    label: str = "attention"
    parallel: str = "K"

    def parameters(self, sizes: Sizes) -> int:
        return UP.parameters(sizes)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return UP.weights(sizes, shard)

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a latent vector, its rotary key and the indexer's key with its scale.

        In FP8 (vLLM's fp8_ds_mla) the rotary key stays in BF16, and each 128 latent numbers have a scale.
        """
        latent, rotary, index = (sizes.of[name] for name in "cpj")
        if shard.precision.cache is DType.FP8:
            kept = latent + SCALE * latent / 128 + rotary * DType.BF16.bytes
        else:
            kept = (latent + rotary) * shard.precision.cache.bytes
        return kept + index + SCALE

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        tokens, heads, content, rotary, value, latent = (local.of[index] for index in "tKnpvc")
        for part in PARTS:
            yield Op(f"index_{part}", IndexLayer(part, local.of["k"], local.of["j"]))
            yield Op(f"choose_{part}", ChoiceLayer(part, self.chosen))
        yield Op("q_absorb", BatchedGemm(heads, tokens, latent, content))
        yield Op(self.label, SparseLatentLayer(heads, latent, rotary, self.chosen, shard.precision.cache))
        yield Op("v_up", BatchedGemm(heads, tokens, value, latent))


def _rows(operation: Einsum | Map, sizes: Sizes, shard: Shard, tokens: Tokens) -> Iterator[Op]:
    """What *operation* launches for one token, for as many as a batch has of a kind."""
    for launch in operation.lower(Sizes({**sizes.of, "t": 1}), shard):
        assert isinstance(launch.kernel, Gemm | Pointwise)
        yield Op(launch.label, Rows(launch.kernel, tokens))
