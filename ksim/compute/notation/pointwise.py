"""Norms, activations, rotary embeddings, cache writes, additions: what only moves memory."""

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from ksim.compute.equation import Equation, parse
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.notation import Task, number_format
from ksim.compute.notation.splits import Splits, check, share, splits
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType

__all__ = ["Elementwise", "pointwise"]


@frozen
class Elementwise:
    """A kernel that moves numbers and does little with them, such as ``pointwise("silu_mul", "bsgF->bsF")``.

    The equation lists the tensors read and written, in the formats `reads` and `writes`.  Those of `scale`, with
    commas between them, are weights: read too, in BF16.  A thread block works off one of the `rows`, the product of
    those of these indices that the equation has.  `family` is the kind of kernel that oracles know it by.
    """

    family: str
    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    scale: str = field(default="", kw_only=True)
    rows: str = field(default="bs", kw_only=True)
    reads: DType = field(default=DType.BF16, converter=number_format, kw_only=True)
    writes: DType = field(default=DType.BF16, converter=number_format, kw_only=True)

    @label.default
    def _family(self) -> str:
        return self.family

    def __attrs_post_init__(self) -> None:
        check(self.tensors, self.parallel, self.indices, "parallel")
        if not set(self.rows) & set(self.tensors.indices):
            raise self.tensors.wrong(f"none of its indices is one of the rows, {self.rows!r}; name others with rows=")

    @property
    def tensors(self) -> Equation:
        return parse(self.equation)

    @property
    def indices(self) -> str:
        return "".join(dict.fromkeys(self.tensors.indices + self.scale.replace(",", "")))

    def lower(self, sizes: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        local = share(sizes, self.parallel, ranks, self.label)
        read = sum(map(local.volume, self.tensors.operands))
        written = sum(map(local.volume, self.tensors.results))
        weights = sum(local.volume(tensor) for tensor in self.scale.split(",") if tensor)
        yield Task(self.label, Pointwise(
            self.family, read * self.reads.bytes + weights * DType.BF16.bytes, written * self.writes.bytes, float(read),
            local.volume(index for index in self.rows if index in self.tensors.indices)))


pointwise = Elementwise
