"""Einsum equations: parsed, checked, and turned into matrix products.

``bsm,mF->bsF`` names the indices of each operand and of the result, one letter each.  Indices of both operands and the
result are the batch, those of the left operand alone the rows (M), those of the right alone the columns (N), and those
that the result lacks are contracted (K).
"""

from collections.abc import Callable, Collection
from functools import cache, cached_property

from attrs import frozen


@frozen
class Contraction:
    """One product of two operands, each a string of indices."""

    left: str
    right: str
    out: str

    @cached_property
    def batch(self) -> str:
        return _select(self.left, lambda index: index in self.right and index in self.out)

    @cached_property
    def rows(self) -> str:
        return _select(self.out, lambda index: index not in self.right)

    @cached_property
    def columns(self) -> str:
        return _select(self.out, lambda index: index in self.right and index not in self.left)

    @cached_property
    def depth(self) -> str:
        """What is contracted."""
        return _select(self.right, lambda index: index not in self.out)


def _select(indices: str, wanted: Callable[[str], bool]) -> str:
    return "".join(filter(wanted, indices))


@frozen
class Equation:
    """An equation that `parse` has read."""

    text: str
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        return (*self.operands, *self.results)

    @cached_property
    def indices(self) -> str:
        """Each index once, in order of appearance."""
        return "".join(dict.fromkeys("".join(self.tensors)))

    def wrong(self, problem: str) -> ValueError:
        return ValueError(f"{self.text!r}: {problem}")

    def of(self, *operands: int) -> "Equation":
        """This equation; raises ValueError for another number of *operands*, or more than one result."""
        if len(self.operands) not in operands:
            wanted = " or ".join(map(str, operands)) + (" operand" if operands == (1,) else " operands")
            raise self.wrong(f"expected {wanted}, with commas between them, not {len(self.operands)}")
        if len(self.results) > 1:
            raise self.wrong(f"expected one result, not {len(self.results)}")
        return self

    def check(self, free: Collection[str] = ()) -> None:
        """Raise ValueError for an index, unless *free*, of the result alone, or of one input alone."""
        out = {*self.results[0]}
        if lost := out.difference(*self.operands, free):
            raise self.wrong(f"index {min(lost)!r} of the result is in no input")
        inputs = "".join(self.operands)
        if unsummed := {index for index in inputs if inputs.count(index) == 1} - out - {*free}:
            raise self.wrong(f"index {min(unsummed)!r} is in one input only and not in the result")

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """The pairwise products, from left to right; each result keeps the indices that are still needed."""
        left, *others = self.operands
        products = []
        for number, right in enumerate(others, 1):
            later = "".join((*others[number:], self.results[0]))
            out = _select("".join(dict.fromkeys(left + right)), later.__contains__)
            products.append(Contraction(left, right, out if others[number:] else self.results[0]))
            left = out
        return tuple(products)


@cache
def parse(text: str) -> Equation:
    """The equation written as *text*; raises ValueError for what is none."""
    inputs, arrow, outputs = text.partition("->")
    read = Equation(text, tuple(inputs.split(",")), tuple(outputs.split(",")))
    if not arrow or "->" in outputs:
        raise read.wrong("expected one arrow between inputs and result, as in 'bsm,mF->bsF'")
    for tensor in read.tensors:
        if not tensor:
            raise read.wrong("expected indices on both sides of each comma and of the arrow")
        if strange := [letter for letter in tensor if not letter.isalpha()]:
            raise read.wrong(f"{strange[0]!r} is no index; each is one letter, with nothing between them")
        if twice := [index for index in tensor if tensor.count(index) > 1]:
            raise read.wrong(f"index {twice[0]!r} is twice in {tensor!r}")
    return read
