"""Launches of any number of tokens, known from those of a few: numbers that grow evenly with tokens are lines."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import fields, frozen

from ksim.compute.graph import Block, Op

__all__ = ["AffineBlocks", "AffineOp", "Line"]

#: Numbers of tokens from which lines are drawn, and others that they must meet.  No prime is shared out evenly, or in
#: whole tiles.
DRAWN, MET = (1009, 4507), (1, 7, 1013, 30011)


@frozen
class Line:
    """A number, whole where the slope is: `slope` for each token and an `offset`."""

    slope: Any
    offset: Any

    def at(self, tokens: Any) -> Any:
        return self.slope * tokens + self.offset


@frozen
class AffineOp:
    """An op whose kernel is of a `kind`; of its field `values`, some are lines."""

    label: str
    kind: type
    values: tuple[Any, ...]

    def at(self, tokens: int) -> Op:
        return Op(self.label, self.kind(*[value.at(tokens) if type(value) is Line else value for value in self.values]))


@frozen
class AffineBlocks:
    """Blocks of ops, each of which is the same for any number of tokens, or affine in it."""

    blocks: tuple[tuple[tuple[Op | AffineOp, ...], int], ...]

    @classmethod
    def of(cls, lower: Callable[[int], Sequence[Block]]) -> "AffineBlocks | None":
        """What *lower* makes of any number of tokens; None where that is not the same kernels, growing evenly."""
        one, other = map(lower, DRAWN)
        drawn = [(_drawn(block.ops, following.ops), block.repeat) for block, following in zip(one, other, strict=False)]
        if not all(ops is not None for ops, _ in drawn):
            return None
        affine = cls(tuple((ops, repeat) for ops, repeat in drawn if ops is not None))
        return affine if all(affine.at(tokens) == [*lower(tokens)] for tokens in (*DRAWN, *MET)) else None

    def at(self, tokens: int) -> list[Block]:
        """Those of so many *tokens*."""
        return [Block(tuple(op if type(op) is Op else op.at(tokens) for op in ops), repeat)  # type: ignore[union-attr]
                for ops, repeat in self.blocks]


def _drawn(ops: Sequence[Op], others: Sequence[Op]) -> tuple[Op | AffineOp, ...] | None:
    """Lines through *ops* and the *others*; None where one cannot be drawn."""
    drawn = [_affine(op, other) for op, other in zip(ops, others, strict=False)]
    return None if len(ops) != len(others) or None in drawn else tuple(op for op in drawn if op is not None)


def _affine(op: Op, other: Op) -> Op | AffineOp | None:
    if op == other:
        return op
    if type(other.kernel) is not type(op.kernel) or op.mean is not None:
        return None
    kind: Any = type(op.kernel)
    return AffineOp(op.label, kind, tuple(_through(getattr(op.kernel, each.name), getattr(other.kernel, each.name))
                                          for each in fields(kind)))


def _through(value: Any, other: Any) -> Any:
    """What grows from *value* to the *other*, or *value* where that is no number."""
    if value == other or not all(isinstance(each, int | float) for each in (value, other)):
        return value
    begin, end = DRAWN
    slope = (other - value) / (end - begin)
    if isinstance(value, int):
        slope = round(slope)
    return Line(slope, value - slope * begin)
