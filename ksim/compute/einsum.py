"""Models as einsums: labelled equations over named indices, and what each rank launches for them.

The indices have one meaning throughout:

    t  tokens of the step           m  hidden (model) size         V  vocabulary
    s  tokens that are sampled      K  key/value heads             E  experts
    x  token-expert pairs (t x k)   r  query heads per KV head     F  size of the MLP or of one expert
    z  context attended to          i  r + 2: queries, key, value  g  2: gate and up
                                    h  head dimension

An einsum is a GEMM: indices in both inputs and the output are its batch, those
in the left input alone its M, in the right input alone its N, and those that
the output lacks its K, which is contracted.  `parallel` names the index that
tensor parallelism splits; where it is contracted, the ranks hold partial sums,
and an all-reduce follows by itself.
"""

from collections.abc import Iterator, Mapping
from math import ceil, prod
from typing import Protocol

from attrs import field, frozen
from attrs.validators import matches_re

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.grouped_gemm import GroupedGemm, even_loads
from ksim.compute.kernels.pointwise import Pointwise
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.deployment import Shard

#: Indices whose size is the step's, not the model's.
STEP = frozenset("tsxz")


@frozen
class Sizes:
    """How far each index runs over the whole model and step."""

    of: Mapping[str, int]

    def volume(self, indices: str) -> int:
        """How many numbers a tensor over *indices* holds."""
        return prod(self.of[index] for index in indices)

    def split(self, index: str, ways: int) -> "Sizes":
        """The sizes on one of *ways* ranks that share *index* out among them; "" is shared by none.

        With fewer KV heads than ranks, each rank keeps one of them and shares its
        query heads, as in vLLM.  Vocabularies are padded.  Raises ConfigError for
        *ways* that do not divide what must be divided.
        """
        if not index or ways == 1:
            return self
        size = self.of[index]
        if index == "V":
            return Sizes({**self.of, "V": ceil(size / ways)})
        if index == "K":
            return self._split_heads(ways)
        if size % ways:
            raise ConfigError("tensor_parallel_size", f"{ways} does not divide an MLP of {size}")
        return Sizes({**self.of, index: size // ways})

    def _split_heads(self, ways: int) -> "Sizes":
        kv_heads, heads = self.of["K"], self.of["K"] * self.of["r"]
        if heads % ways or (kv_heads % ways and ways % kv_heads):
            raise ConfigError("tensor_parallel_size", f"{ways} does not divide {heads} attention heads"
                                                      f" with {kv_heads} key/value heads")
        kv_heads = max(1, kv_heads // ways)
        group = heads // ways // kv_heads
        return Sizes({**self.of, "K": kv_heads, "r": group, "i": group + 2})


class Operation(Protocol):
    """One line of a model."""

    def parameters(self, sizes: Sizes) -> int:
        """How many weights the whole model has here."""
        ...

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of weights that one rank holds."""
        ...

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        """What one rank launches."""
        ...


@frozen
class Einsum:
    """A product of activations with weights, such as ``op("tm,miKh->tiKh", "qkv", parallel="K")``.

    `routed` names the index of the expert that each row of the left input is
    sent to: a grouped GEMM.  `quantized` weights are stored, and their
    activations computed, in the formats of the deployment; the others in BF16.
    """

    equation: str = field(validator=matches_re(r"[A-Za-z]+,[A-Za-z]+->[A-Za-z]+"))
    label: str
    parallel: str = ""
    routed: str = ""
    bias: bool = False
    quantized: bool = True

    def __attrs_post_init__(self) -> None:
        left, right, out = self._operands
        if lost := set(out) - set(left) - set(right):
            raise ValueError(f"{self.equation!r}: index {min(lost)!r} of the result is in no input")
        if unsummed := (set(left) ^ set(right)) - set(out) - set(self.routed):
            raise ValueError(f"{self.equation!r}: index {min(unsummed)!r} is in one input only and not in the result")
        if self.parallel and self.parallel not in right:
            raise ValueError(f"{self.equation!r}: parallel index {self.parallel!r} is not one of the weights")

    @property
    def _operands(self) -> tuple[str, str, str]:
        inputs, _, out = self.equation.partition("->")
        left, _, right = inputs.partition(",")
        return left, right, out

    def parameters(self, sizes: Sizes) -> int:
        _, right, out = self._operands
        return sizes.volume(right) + self.bias * sizes.volume("".join(i for i in out if i not in STEP))

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        dtype = shard.precision.weights if self.quantized else DType.BF16
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * dtype.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        left, right, out = self._operands
        local = sizes.split(self.parallel, shard.tensor)
        rows = local.volume("".join(i for i in left if i in out))
        columns = local.volume("".join(i for i in right if i in out and i not in left))
        depth = local.volume("".join(i for i in left if i not in out))
        if not rows:
            return
        formats = (shard.precision.weights, shard.precision.activations) if self.quantized else (DType.BF16,) * 2
        if formats[1] is not DType.BF16:
            yield Op(f"{self.label}_quantize", Pointwise(
                "quantize", rows * depth * DType.BF16.bytes, rows * depth * formats[1].bytes, rows * depth))
        if self.routed:
            loads = even_loads(sizes.of["t"], sizes.of["x"] // sizes.of["t"], sizes.of[self.routed])
            yield Op(self.label, GroupedGemm(loads, columns, depth, *formats))
        else:
            yield Op(self.label, Gemm(rows, columns, depth, *formats))
        if self.parallel and self.parallel not in out and not self.routed and shard.tensor > 1:
            size = rows * columns * DType.BF16.bytes
            yield Op(f"{self.label}_all_reduce", Collective("all_reduce", size, "tensor"))


@frozen
class Map:
    """A kernel that moves numbers and does little with them, such as ``Map("silu_mul", "tgF->tF", "act")``.

    `equation` lists the tensors read and written, in BF16 unless `reads` or
    `writes` say otherwise; "cache" is the format of the KV cache.  The tensors
    of `scale` are weights: read too, and counted as parameters.
    """

    family: str
    equation: str = field(validator=matches_re(r"[A-Za-z]+(,[A-Za-z]+)*->[A-Za-z]+(,[A-Za-z]+)*"))
    label: str
    parallel: str = ""
    scale: str = ""
    reads: str = "bf16"
    writes: str = "bf16"

    def parameters(self, sizes: Sizes) -> int:
        return sum(sizes.volume(indices) for indices in self.scale.split(",") if indices)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        inputs, _, outputs = self.equation.partition("->")
        read = sum(local.volume(indices) for indices in inputs.split(","))
        written = sum(local.volume(indices) for indices in outputs.split(","))
        if read and written:
            read_bytes = read * self._format(self.reads, shard).bytes + self.weights(sizes, shard)
            written_bytes = written * self._format(self.writes, shard).bytes
            yield Op(self.label, Pointwise(self.family, read_bytes, written_bytes, float(read)))

    @staticmethod
    def _format(name: str, shard: Shard) -> DType:
        return shard.precision.cache if name == "cache" else DType.named(name)


@frozen
class Gather:
    """A table look-up, one row of the weights for each token: the embedding."""

    equation: str = field(validator=matches_re(r"[A-Za-z]{2}->[A-Za-z]{2}"))
    label: str
    parallel: str = ""

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(self.equation.partition("->")[0])

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        moved = sizes.volume(self.equation.partition("->")[2]) * DType.BF16.bytes
        yield Op(self.label, Pointwise("embedding", moved, moved, 0.0))
        if self.parallel and shard.tensor > 1:  # each rank has the rows of some tokens, and zeros for the others
            yield Op(f"{self.label}_all_reduce", Collective("all_reduce", moved, "tensor"))


@frozen
class Attend:
    """``tKrh,zKh->tKrz`` and ``tKrz,zKh->tKrh`` fused: each sequence's queries over its own context.

    `window` is how many tokens a query sees back, its own among them; 0 means all.
    """

    label: str = "attention"
    parallel: str = "K"
    window: int = 0

    def parameters(self, sizes: Sizes) -> int:
        return 0

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return 0.0

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        yield Op(self.label, AttentionLayer(
            local.volume("Kr"), local.volume("K"), local.volume("h"), self.window, shard.precision.cache))


@frozen
class Communicate:
    """A collective that no einsum implies; `indices` is the tensor that the ranks share."""

    kind: CollectiveKind
    indices: str
    label: str

    def parameters(self, sizes: Sizes) -> int:
        return 0

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return 0.0

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.volume(self.indices) * DType.BF16.bytes
        if shard.tensor > 1 and size:
            yield Op(self.label, Collective(self.kind, size, "tensor"))


op = Einsum
