"""How kernels print: texts that many share, with the numbers in which they differ."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

__all__ = ["Shapes"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]


@frozen(eq=False)
class Shapes(Sequence[str]):
    """The shape of each of many kernels, printed when asked for.

    A shape is one of `templates`, whose places (``{:.0f}``) its column of `numbers` fills: (numbers, kernels).
    """

    templates: Sequence[str]
    template: Codes
    numbers: Floats

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Shapes":
        """Shapes that are texts."""
        known: dict[str, int] = {}
        template = np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int32)
        return cls([text.replace("{", "{{").replace("}", "}}") for text in known], template,
                   np.zeros((0, len(texts))))

    @classmethod
    def numbered(cls, template: str, kernels: int, numbers: Sequence[Any]) -> "Shapes":
        """The shapes of so many *kernels* with one *template*, and with these columns of *numbers*, or numbers."""
        columns = np.empty((len(numbers), kernels))
        for row, number in enumerate(numbers):
            columns[row] = number
        return cls([template], np.zeros(kernels, np.int32), columns)

    @classmethod
    def joined(cls, pieces: Sequence["Shapes"]) -> "Shapes":
        """All of *pieces*, one after another."""
        known: dict[str, int] = {}
        codes = [np.array([known.setdefault(text, len(known)) for text in piece.templates], dtype=np.int32)[
            piece.template] for piece in pieces]
        template, begin = np.concatenate([np.zeros(0, np.int32), *codes]), 0
        numbers = np.zeros((max((len(piece.numbers) for piece in pieces), default=0), len(template)))
        for piece in pieces:
            numbers[:len(piece.numbers), begin: begin + len(piece)] = piece.numbers
            begin += len(piece)
        return cls([*known], template, numbers)

    def taken(self, rows: Any) -> "Shapes":
        """Those at *rows*, as often as they are there."""
        return Shapes(self.templates, self.template[rows], self.numbers[:, rows])

    def distinct(self) -> tuple[Ints, "Shapes"]:
        """Which of the distinct shapes each is, and these; shapes that print alike are one."""
        keys = np.concatenate([self.template[None], self.numbers])
        order = np.lexsort(keys)
        changed = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
        codes = np.empty(len(self), np.int64)
        codes[order] = np.concatenate([np.zeros(min(1, len(self)), np.int64), np.cumsum(changed)])
        first = order[np.concatenate([np.ones(min(1, len(self)), np.bool_), changed])]
        return self._merged(codes, self.taken(first))

    @staticmethod
    def _merged(codes: Ints, shapes: "Shapes") -> tuple[Ints, "Shapes"]:
        """The same where *shapes* that print alike are one."""
        rows: dict[str, int] = {}
        number = np.fromiter((rows.setdefault(text, len(rows)) for text in shapes), np.int64, len(shapes))
        first = np.unique(number, return_index=True)[1]
        return number[codes], shapes.taken(first)

    def __len__(self) -> int:
        return len(self.template)

    def __iter__(self) -> Iterator[str]:
        for template, numbers in zip(self.template.tolist(), self.numbers.T.tolist(), strict=True):
            yield self.templates[template].format(*numbers)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self.taken(row)]
        return self.templates[self.template[row]].format(*self.numbers[:, row].tolist())
