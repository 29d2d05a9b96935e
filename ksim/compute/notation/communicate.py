"""Collectives that no product implies."""

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import in_

from ksim.compute.equation import parse
from ksim.compute.graph import Collective, CollectiveKind, Op
from ksim.compute.notation import number_format
from ksim.compute.notation.splits import check, group_of, splits
from ksim.compute.sizes import Sizes, Splits
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Communicate", "Send", "communicate"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift")


@frozen
class Communicate:
    """A collective over the group `by`, such as ``communicate("all_to_all", "ETm", by="expert", parallel=...)``.

    `tensor` lists the indices of what is sent, and `parallel` says how they are split.  It is the whole result of an
    all_gather or all_reduce, the whole input of a reduce_scatter, and what one rank holds for the others.
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

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.on(self.parallel, shard, self.label).volume(self.tensor) * self.format.bytes
        if size and shard.ranks(self.by) > 1:
            yield Op(self.label, Collective(self.kind, size, self.by))


@frozen
class Send:
    """The message from one pipeline stage to the next: each rank sends a slice of `tensor`, in BF16, to its peer."""

    tensor: str
    label: str

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        size = sizes.volume(self.tensor) * DType.BF16.bytes
        yield Op(self.label, Collective("send", size / shard.tensor, "pipeline"))


communicate = Communicate
