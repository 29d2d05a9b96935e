"""Collectives that no product implies."""

from collections.abc import Iterator, Mapping

from attrs import field, frozen
from attrs.validators import in_

from ksim.compute.equation import parse
from ksim.compute.graph import Collective, CollectiveKind
from ksim.compute.notation import Task, number_format
from ksim.compute.notation.splits import Splits, check, group_of, share, splits
from ksim.compute.sizes import Sizes
from ksim.foundation.units import DType

__all__ = ["Communicate", "communicate"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift")


@frozen
class Communicate:
    """A collective over the group `by`, such as ``communicate("all_to_all", "ETm", by="expert", parallel=...)``.

    `tensor` lists the indices of what is sent, and `parallel` says how they are split: the whole result of an
    all_gather, the whole input of a reduce_scatter, what one rank holds of the others.
    """

    kind: CollectiveKind = field(validator=in_(KINDS))
    tensor: str
    by: str = field(default="tensor", converter=group_of)
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    format: DType = field(default=DType.BF16, converter=number_format, kw_only=True)

    @label.default
    def _kind(self) -> str:
        return self.kind

    def __attrs_post_init__(self) -> None:
        read = parse(f"{self.tensor}->{self.tensor}").of(1)
        check(read, self.parallel, self.tensor, "parallel")

    @property
    def indices(self) -> str:
        return self.tensor

    def lower(self, sizes: Sizes, ranks: Mapping[str, int]) -> Iterator[Task]:
        size = share(sizes, self.parallel, ranks, self.label).volume(self.tensor) * self.format.bytes
        if ranks[self.by] > 1:
            yield Task(self.label, Collective(self.kind, size, self.by))


communicate = Communicate
