"""Models as einsums: labelled equations over the indices of `sizes`, and what each rank launches for them.

An einsum is a GEMM of activations, on the left, with weights: the indices that
the output has from the weights are its N, its others are its M, and those that
it lacks are its K, which is contracted.  `parallel` names the index that tensor
parallelism splits; where it is contracted, the ranks hold partial sums, and an
all-reduce follows by itself.
"""

from collections.abc import Iterator
from typing import Protocol

from attrs import frozen

from ksim.compute.equation import parse
from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType
from ksim.specs.deployment import Shard


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

    `routed` names the index of the expert that each row is sent to: a grouped
    GEMM.  Rows come as pairs x, or as tokens T that are gathered on the way.
    `quantized` weights are stored, and their activations computed, in the
    formats that the deployment has for the `part` of the model; `exact` ones in
    FP32, the others in BF16.  Partial sums that are not `reduced` are left to a collective that
    follows by name, or added to others whose all-reduce is theirs too.
    """

    equation: str
    label: str
    parallel: str = ""
    routed: str = ""
    bias: bool = False
    quantized: bool = True
    exact: bool = False
    part: str = ""
    reduced: bool = True

    def __attrs_post_init__(self) -> None:
        read = parse(self.equation).of(2)
        left, right, out = map(set, self._operands)
        read.check({*self.routed, "t", "T", "x"} if self.routed else ())
        if batch := left & right & out:
            raise read.wrong(f"index {min(batch)!r} is in both inputs and in the result")
        if self.parallel and self.parallel not in right:
            raise read.wrong(f"parallel index {self.parallel!r} is not one of the weights")

    @property
    def _operands(self) -> tuple[str, ...]:
        return parse(self.equation).tensors

    def _formats(self, shard: Shard) -> tuple[DType, DType]:
        """Of the weights, and of the activations."""
        if self.exact:
            return DType.FP32, DType.FP32
        return shard.precision.of(self.part) if self.quantized else (DType.BF16, DType.BF16)

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(self._operands[1]) + self.biases(sizes, Shard())

    def biases(self, sizes: Sizes, shard: Shard) -> int:
        """How many numbers one rank adds to products, always in BF16."""
        _, right, out = self._operands
        return self.bias * sizes.on(self.parallel, shard).volume({*right} & {*out, *self.routed})

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        products = sizes.on(self.parallel, shard).volume(self._operands[1])
        return products * self._formats(shard)[0].bytes + self.biases(sizes, shard) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        left, right, out = self._operands
        local = sizes.on(self.parallel, shard)
        rows, columns = local.volume({*out} - {*right}), local.volume({*out} & {*right})
        depth = local.volume({*right} - {*out, *self.routed})
        if not rows:
            return
        weights, activations = self._formats(shard)
        if activations is not DType.BF16:
            values = float(local.volume(left))
            family = "cast" if self.exact else "quantize"
            yield Op(f"{self.label}_{family}", Pointwise(
                family, values * DType.BF16.bytes, values * activations.bytes, values, local.of[left[0]]))
        if self.routed:
            inputs = min(local.volume(left) // depth, local.of["x"])
            yield Op(self.label, GroupedGemm(local.loads, columns, depth, local.of["T"], weights, activations, inputs))
            return
        yield Op(self.label, Gemm(rows, columns, depth, weights, activations))
        if self.reduced and self.parallel and self.parallel not in out and shard.tensor > 1:
            yield Op(f"{self.label}_all_reduce",
                     Collective("all_reduce", rows * columns * DType.BF16.bytes, "tensor"))


@frozen
class Map:
    """A kernel that moves numbers and does little with them, such as ``Map("silu_mul", "tgF->tF", "act")``.

    `equation` lists the tensors read and written, in BF16 unless `reads` or
    `writes` say otherwise; "cache" is the format of the KV cache.  The tensors
    of `scale` are weights: read too, and counted as parameters.
    """

    family: str
    equation: str
    label: str
    parallel: str = ""
    scale: str = ""
    reads: str = "bf16"
    writes: str = "bf16"

    def __attrs_post_init__(self) -> None:
        parse(self.equation)

    def parameters(self, sizes: Sizes) -> int:
        return sum(sizes.volume(indices) for indices in self.scale.split(",") if indices)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.on(self.parallel, shard)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.on(self.parallel, shard)
        tensors = parse(self.equation)
        read = sum(map(local.volume, tensors.operands))
        written = sum(map(local.volume, tensors.results))
        if read and written:
            read_bytes = read * self._format(self.reads, shard).bytes + self.weights(sizes, shard)
            written_bytes = written * self._format(self.writes, shard).bytes
            # Where pairs of tokens and experts come in or go out, a block has all pairs of a token.
            rows = min(local.of[tensors.operands[0][0]], local.of[tensors.results[0][0]])
            yield Op(self.label, Pointwise(self.family, read_bytes, written_bytes, float(read), rows))

    @staticmethod
    def _format(name: str, shard: Shard) -> DType:
        return shard.precision.cache if name == "cache" else DType.named(name)


@frozen
class Gather:
    """A table look-up, one row of the weights for each token: the embedding."""

    equation: str
    label: str
    parallel: str = ""

    def __attrs_post_init__(self) -> None:
        parse(self.equation).of(1)

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(parse(self.equation).operands[0])

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        out = parse(self.equation).results[0]
        moved = sizes.volume(out) * DType.BF16.bytes
        own = moved / shard.tensor if self.parallel else moved
        yield Op(self.label, Pointwise("embedding", moved, moved, 0.0, sizes.of[out[0]], cold_bytes=own))
        if self.parallel and shard.tensor > 1:  # each rank has the rows of some tokens, and zeros for the others
            yield Op(f"{self.label}_all_reduce", Collective("all_reduce", moved, "tensor"))


@frozen
class Attend:
    """``tKrh,zKh->tKrz`` and ``tKrz,zKh->tKrh`` fused: each sequence's queries over its own context.

    `window` is how many tokens a query sees back, its own among them; 0 means all.
    With `sinks`, each head has a weight that takes part in its softmax.
    """

    label: str = "attention"
    parallel: str = "K"
    window: int = 0
    sinks: bool = False

    def parameters(self, sizes: Sizes) -> int:
        return self.sinks * sizes.volume("Kr")

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.split(self.parallel, shard.tensor)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.split(self.parallel, shard.tensor)
        yield Op(self.label, AttentionLayer(
            local.volume("Kr"), local.volume("K"), local.volume("h"), self.window, shard.precision.cache))

    def cache_per_token(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of a key and a value; windows do not lessen them, as in vLLM's uniform pool."""
        return 2 * sizes.split(self.parallel, shard.tensor).volume("Kh") * shard.precision.cache.bytes


@frozen
class Communicate:
    """A collective that no einsum implies; `indices` is the tensor that the ranks of a stage share, in `format`.

    What a stage sends to the next goes rank by rank, a slice from each.
    """

    kind: CollectiveKind
    indices: str
    label: str
    format: str = "bf16"

    def parameters(self, sizes: Sizes) -> int:
        return 0

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return 0.0

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.volume(self.indices) * DType.named(self.format).bytes
        if self.kind == "send":
            yield Op(self.label, Collective(self.kind, size / shard.tensor, "pipeline"))
        elif shard.tensor > 1 and size:
            yield Op(self.label, Collective(self.kind, size, "tensor"))


op = Einsum
