"""Products of two or three tensors: GEMMs, with the collectives that their splits imply."""

from collections.abc import Iterator, Mapping

from attrs import field, frozen
from attrs.validators import ge, instance_of

from ksim.compute.equation import Contraction, Equation, parse
from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.notation import Task, number_format
from ksim.compute.notation.splits import Splits, check, share, splits
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

__all__ = ["Product", "op"]


@frozen
class Product:
    """An einsum of two tensors, or of three from left to right, such as ``op("bsm,mgF->bsgF", parallel="F")``.

    `parallel` says which group of ranks splits which index: "F", short for {"F": "tensor"}, or a table of several.
    Where such an index is contracted, ranks hold partial sums, and an all-reduce over the group follows.  With
    `scatter` it is a reduce-scatter, which leaves each rank its part of that index of the result; with `gather` an
    all-gather before brings together that index of the first operand.  Both read like `parallel`.

    A GEMM multiplies `activations`, on the left, by `weights` in these formats; with a batch, both are BF16.
    In `overlap_stage` pieces, 1 for none, the sum over ranks of each runs beside the product of the next, on
    `overlap_sms` SMs (cost/overlap.py).
    """

    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    gather: Splits = field(default=(), converter=splits, kw_only=True)
    scatter: Splits = field(default=(), converter=splits, kw_only=True)
    weights: DType = field(default=DType.BF16, converter=number_format, kw_only=True)
    activations: DType = field(default=DType.BF16, converter=number_format, kw_only=True)
    overlap_stage: int = field(default=1, validator=(instance_of(int), ge(1)), kw_only=True)
    overlap_sms: int = field(default=0, validator=(instance_of(int), ge(0)), kw_only=True)

    @label.default
    def _equation(self) -> str:
        return self.equation

    def __attrs_post_init__(self) -> None:
        read = self.tensors.of(2, 3)
        read.check()
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

    def lower(self, sizes: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        local = share(sizes, self.parallel, ranks, self.label)
        for pairs in (self.gather, self.scatter):
            share(local, pairs, ranks, self.label)
        yield from self._gathered(local, ranks)
        parts = self.tensors.contractions()
        for number, part in enumerate(parts, 1):
            label = self.label if len(parts) == 1 else f"{self.label}_{number}"
            yield Task(label, self._kernel(part, local))
            yield from self._summed(label, part, local, ranks)

    def _kernel(self, part: Contraction, local: Sizes) -> Kernel:
        count, m, n, k = map(local.volume, (part.batch, part.rows, part.columns, part.depth))
        if count == 1:
            return Gemm(m, n, k, self.weights, self.activations)
        if (self.weights, self.activations) != (DType.BF16, DType.BF16):
            raise ConfigError(self.label, f"has a batch over {part.batch}, and products with one are in BF16; leave"
                                          f" weights and activations at 'bf16'")
        return BatchedGemm(count, m, n, k)

    def _gathered(self, local: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        size = local.volume(self.tensors.operands[0]) * self.activations.bytes
        for _, group in self.gather:
            if ranks[group] > 1:
                yield Task(f"{self.label}_all_gather", Collective("all_gather", size, group))

    def _summed(self, label: str, part: Contraction, local: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        """The collectives that make sums whole, those first that leave less to send."""
        size = local.volume(part.out) * DType.BF16.bytes
        scattered = {group for _, group in self.scatter}
        groups = dict.fromkeys(group for index, group in self.parallel if index in part.depth and ranks[group] > 1)
        for group in sorted(groups, key=lambda group: group not in scattered):
            if group in scattered:
                yield Task(f"{label}_reduce_scatter", Collective("reduce_scatter", size, group))
                size /= ranks[group]
            else:
                yield Task(f"{label}_all_reduce", Collective("all_reduce", size, group))


op = Product
