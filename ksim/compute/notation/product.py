"""Products of two or three tensors: GEMMs, with the collectives that their splits imply.

`HeldWeights` are weights that the kernel of another operation reads, too few to change its time.
"""

from collections.abc import Iterator

from attrs import field, frozen
from attrs.converters import optional
from attrs.validators import ge, instance_of

from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.basic import BatchedGemm, Gemm, GroupedGemm, Pointwise
from ksim.compute.notation import number_format
from ksim.compute.notation.communicate import SENT, check, held, splits
from ksim.compute.sizes import Contraction, Equation, Sizes, Splits, parse
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Product", "op", "HeldWeights", "UNPACKED"]


#: Formats that no kernel multiplies, but for a single row of activations.
UNPACKED = frozenset((DType.NF4, DType.NF4_DOUBLE))
#: The group of each row of weights, where groups are not neighbours (`g_idx`).
INDEX_BYTES = 4


@frozen
class Product:
    """An einsum of two tensors, or of three from left to right, such as ``op("bsm,mgF->bsgF", parallel="F")``.

    `parallel` says which group of ranks splits which index: "F", short for {"F": "tensor"}, or a table of several.
    Where such an index is contracted, ranks hold partial sums, and an all-reduce over the group follows.  With
    `scatter`, a reduce-scatter follows instead, which leaves each rank its part of that index of the result.  With
    `gather`, an all-gather of that index of the first operand comes before.  Both are written like `parallel`.

    A GEMM multiplies `activations`, on the left, by `weights` in these formats; with a batch, both are BF16.
    In `overlap_stage` pieces, 1 for none, the sum over ranks of each runs beside the product of the next, on
    `overlap_sms` SMs (cost/overlap.py).
    """

    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    gather: Splits = field(default=(), converter=splits, kw_only=True)
    scatter: Splits = field(default=(), converter=splits, kw_only=True)
    weight_format: DType | None = field(default=DType.BF16, converter=optional(number_format), kw_only=True,
                                        alias="weights")
    activation_format: DType | None = field(default=DType.BF16, converter=optional(number_format), kw_only=True,
                                            alias="activations")
    """None is the format that the deployment has for the weights, or the activations, of this `part` of the model."""
    overlap_stage: int = field(default=1, validator=(instance_of(int), ge(1)), kw_only=True)
    overlap_sms: int = field(default=0, validator=(instance_of(int), ge(0)), kw_only=True)
    part: str = field(default="", kw_only=True)
    inputs: DType | None = field(default=None, kw_only=True)
    """The format in which the first operand comes, None for that of activations; else a kernel before converts it."""
    routed: str = field(default="", kw_only=True)
    """The index of the experts that rows are routed to, in a grouped GEMM: rows are pairs x, or tokens T."""
    bias: bool = field(default=False, kw_only=True)
    reduced: bool = field(default=True, kw_only=True)
    """Whether partial sums are added up right here; if not, a later operation does so."""

    @label.default
    def _equation(self) -> str:
        return self.equation

    def __attrs_post_init__(self) -> None:
        read = self.tensors.of(2, 3)
        read.check({*self.routed, "t", "T", "x"} if self.routed else ())
        if (self.overlap_stage > 1) != (self.overlap_sms > 0):
            raise read.wrong(f"overlap_stage = {self.overlap_stage} and overlap_sms = {self.overlap_sms}: set 2 or more"
                             f" stages and 1 SM or more, or neither")
        check(read, self.parallel, read.indices, "parallel")
        check(read, self.gather, read.operands[0], "gather")
        check(read, self.scatter, read.results[0], "scatter")
        for word, pairs in (("gather", self.gather), ("scatter", self.scatter)):
            if both := [index for index, group in pairs if (index, group) in self.parallel]:
                raise read.wrong(f"{word} index {both[0]!r} is split by the same group here")
        summed = {group for index, group in self.parallel if index not in read.results[0]}
        for index, group in self.scatter:
            if group not in summed or len(read.operands) > 2:
                raise read.wrong(f"there is no sum over {group!r} to scatter by {index!r}: of two operands, that group"
                                 f" must split an index that is contracted")

    @property
    def tensors(self) -> Equation:
        return parse(self.equation)

    @property
    def indices(self) -> str:
        return self.tensors.indices

    @property
    def quantized(self) -> bool:
        """Whether the deployment decides in which format weights are stored."""
        return self.weight_format is None

    def parameters(self, sizes: Sizes) -> int:
        return sum(map(sizes.volume, self.tensors.operands[1:])) + self.biases(sizes, Shard())

    def biases(self, sizes: Sizes, shard: Shard) -> int:
        """The number of biases on one rank, always in BF16."""
        local = sizes.on(self.parallel, shard, self.label)
        return self.bias * local.volume({*self.tensors.operands[-1]} & {*self.tensors.results[0], *self.routed})

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        local = sizes.on(self.parallel, shard, self.label)
        products = sum(map(local.volume, self.tensors.operands[1:]))
        places = INDEX_BYTES * local.volume(self.depth) if self._permuted(shard) else 0
        return products * self._formats(shard)[0].bytes + places + self.biases(sizes, shard) * DType.BF16.bytes

    @property
    def depth(self) -> str:
        """The indices of weights that the first product sums over, with that of the experts."""
        return "".join(dict.fromkeys((*self.tensors.contractions[0].depth, *self.routed)))

    def _formats(self, shard: Shard) -> tuple[DType, DType]:
        """The formats of weights and of activations."""
        weights, activations = shard.precision.of(self.part)
        return self.weight_format or weights, self.activation_format or activations

    def _permuted(self, shard: Shard) -> bool:
        """Whether activations are put in the order of groups that are not neighbours."""
        return self.quantized and shard.precision.act_order and (
            shard.precision.of(self.part)[0] is shard.precision.weights)

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.on(self.parallel, shard, self.label)
        for pairs in (self.gather, self.scatter):
            local.on(pairs, shard, self.label)  # raises ConfigError for what does not divide
        if not local.volume(self.tensors.results[0]):
            return
        yield from self._gathered(local, shard)
        yield from self._converted(local, shard)
        yield from self._unpacked(local, shard)
        parts = self.tensors.contractions
        for number, part in enumerate(parts, 1):
            label = self.label if len(parts) == 1 else f"{self.label}_{number}"
            yield Op(label, self._kernel(part, local, shard))
            if self.reduced:
                yield from self._summed(label, part, local, shard)

    def _kernel(self, part: Contraction, local: Sizes, shard: Shard) -> Kernel:
        weights, activations = self._formats(shard)
        if weights in UNPACKED and not self._one_row(local):
            weights = DType.BF16
        if self.routed:
            return self._grouped(part, local, weights, activations)
        count, m, n, k = map(local.volume, (part.batch, part.rows, part.columns, part.depth))
        if count == 1:
            return Gemm(m, n, k, weights, activations)
        if (weights, activations) != (DType.BF16, DType.BF16):
            raise ConfigError(self.label, f"has a batch over {part.batch}, and products with one are in BF16; leave"
                                          f" weights and activations at 'bf16'")
        return BatchedGemm(count, m, n, k)

    def _grouped(self, part: Contraction, local: Sizes, weights: DType, activations: DType) -> GroupedGemm:
        depth = local.volume({*part.depth} - {*self.routed})
        inputs = min(local.volume(part.left) // depth, local.of["x"])
        return GroupedGemm(local.expert_rows, local.volume(part.columns), depth, local.of["T"], weights, activations,
                           inputs)

    def _gathered(self, local: Sizes, shard: Shard) -> Iterator[Op]:
        size = local.volume(self.tensors.operands[0]) * self._formats(shard)[1].bytes
        for _, group in self.gather:
            if shard.ranks(group) > 1:
                yield Op(f"{self.label}_all_gather", Collective("all_gather", size, group))

    def _converted(self, local: Sizes, shard: Shard) -> Iterator[Op]:
        left, activations = self.tensors.operands[0], self._formats(shard)[1]
        if self._permuted(shard) and not self.routed:
            moved = local.volume(left) * activations.bytes
            yield Op(f"{self.label}_permute", Pointwise("copy", moved, moved, 0.0, local.of[left[0]]))
        if self.inputs is None or self.inputs is activations:
            return
        local = held(local, shard, SENT if self.routed and "T" in left else "")
        values, family = float(local.volume(left)), "cast" if activations is DType.FP32 else "quantize"
        yield Op(f"{self.label}_{family}", Pointwise(family, values * self.inputs.bytes, values * activations.bytes,
                                                     values, local.of[left[0]]))

    def _one_row(self, local: Sizes) -> bool:
        return not self.routed and local.volume(self.tensors.contractions[0].rows) == 1

    def _unpacked(self, local: Sizes, shard: Shard) -> Iterator[Op]:
        """The kernel of bitsandbytes before a product of several rows: it writes weights in BF16 (`matmul_4bit`)."""
        stored, right = self._formats(shard)[0], self.tensors.operands[1]
        if stored in UNPACKED and not self._one_row(local):
            values = float(local.volume(right))
            yield Op(f"{self.label}_dequantize", Pointwise(
                "dequantize", values * stored.bytes, values * DType.BF16.bytes, values,
                max(1, round(values / local.volume(self.depth))), cold_bytes=values * stored.bytes))

    def _summed(self, label: str, part: Contraction, local: Sizes, shard: Shard) -> Iterator[Op]:
        """The collectives that add up partial sums; reduce-scatters come first, for they leave less to send."""
        size = local.volume(part.out) * DType.BF16.bytes
        scattered = {group for _, group in self.scatter}
        groups = dict.fromkeys(group for index, group in self.parallel if index in part.depth)
        for group in sorted(groups, key=lambda group: group not in scattered):
            if shard.ranks(group) == 1:
                continue
            kind: CollectiveKind = "reduce_scatter" if group in scattered else "all_reduce"
            yield Op(f"{label}_{kind}", Collective(kind, size, group))
            if group in scattered:
                size /= shard.ranks(group)


op = Product


@frozen
class HeldWeights:
    """A tensor of weights that launches nothing, and that every rank has whole: ``Held("E", "router_correction")``."""

    tensor: str
    label: str
    format: DType = DType.FP32

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(self.tensor)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes) * self.format.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        return iter(())
