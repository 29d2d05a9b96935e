"""Kernels that only move memory: norms, activations, rotary embeddings, cache writes, additions, look-ups."""

from collections.abc import Iterator
from typing import ClassVar

from attrs import field, frozen
from attrs.converters import optional

from ksim.compute.graph import Collective, Op
from ksim.compute.kernels.basic import Pointwise
from ksim.compute.notation import number_format
from ksim.compute.notation.communicate import check, held, splits
from ksim.compute.sizes import Equation, Sizes, Splits, parse
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["Elementwise", "Lookup", "pointwise"]


@frozen
class Elementwise:
    """A kernel that moves memory and computes little, such as ``pointwise("silu_mul", "bsgF->bsF")``.

    The equation lists the tensors read and written, in the formats `reads` and `writes`; None is the format of the KV
    cache.  `scale` lists weights, separated by commas, which are read too, in BF16.  A thread block takes one of the
    `rows`: as many as the product of these indices, so far as the equation has them; of several products, separated by
    commas, the smallest counts.  `family` is the name under which oracles know the kernel.
    """

    family: str
    equation: str
    parallel: Splits = field(default=(), converter=splits)
    label: str = field()
    scale: str = field(default="", kw_only=True)
    rows: str = field(default="bs", kw_only=True)
    reads: DType | None = field(default=DType.BF16, converter=optional(number_format), kw_only=True)
    writes: DType | None = field(default=DType.BF16, converter=optional(number_format), kw_only=True)
    tokens: str = field(default="", kw_only=True)
    """Which tokens T stands for on ranks that send theirs to experts: `communicate.SENT` or `RECEIVED`; "" for all."""

    part: ClassVar[str] = "norms"

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

    def parameters(self, sizes: Sizes) -> int:
        return sum(sizes.volume(tensor) for tensor in self.scale.split(",") if tensor)

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.on(self.parallel, shard, self.label)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local, cache = held(sizes.on(self.parallel, shard, self.label), shard, self.tokens), shard.precision.cache
        read = sum(map(local.volume, self.tensors.operands))
        written = sum(map(local.volume, self.tensors.results))
        if read and written:
            read_bytes = read * (self.reads or cache).bytes + self.parameters(local) * DType.BF16.bytes
            written_bytes = written * (self.writes or cache).bytes
            yield Op(self.label, Pointwise(self.family, read_bytes, written_bytes, float(read), self._rows(local)))

    def _rows(self, local: Sizes) -> int:
        return min(local.volume(index for index in rows if index in self.tensors.indices)
                   for rows in self.rows.split(","))


@frozen
class Lookup:
    """One row of a table of weights for each token: the embedding, ``Lookup("Vm->tm", "embedding", parallel="V")``.

    Ranks that split the table look up the tokens that they have, and an all-reduce adds up the rows.
    """

    equation: str
    label: str = "embedding"
    parallel: Splits = field(default=(), converter=splits)

    part: ClassVar[str] = "embedding"

    def __attrs_post_init__(self) -> None:
        parse(self.equation).of(1)

    def parameters(self, sizes: Sizes) -> int:
        return sizes.volume(parse(self.equation).operands[0])

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        return self.parameters(sizes.on(self.parallel, shard, self.label)) * DType.BF16.bytes

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        out, ranks = parse(self.equation).results[0], shard.tensor if self.parallel else 1
        moved = sizes.volume(out) * DType.BF16.bytes
        yield Op(self.label, Pointwise("embedding", moved, moved, 0.0, sizes.of[out[0]], cold_bytes=moved / ranks))
        if ranks > 1:
            yield Op(f"{self.label}_all_reduce", Collective("all_reduce", moved, "tensor"))


pointwise = Elementwise
