"""Copies between a GPU's blocks and a store that have not ended, and the blocks that must not be overwritten before."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from ksim.scheduling.copies import Copy


@define(eq=False)
class CopiesUnderWay:
    """Numbers copies in the order in which they begin.

    A store of a request that has ended is watched: the cache may give its blocks to others, who will write them anew.
    """

    _copies: dict[int, Copy] = field(factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _watched: dict[int, set[int]] = field(factory=dict, init=False)  # stores, by their blocks

    def __len__(self) -> int:
        return len(self._copies)

    def __getitem__(self, number: int) -> Copy:
        return self._copies[number]

    @property
    def watching(self) -> bool:
        """Whether it matters which blocks the cache hands out."""
        return bool(self._watched)

    def begin(self, **parts: Any) -> Copy:
        """Begin a copy of these *parts*."""
        copy = self._copies[self._next] = Copy(number=self._next, **parts)
        self._next += 1
        return copy

    def end(self, number: int) -> Copy:
        """The copy of that *number* has ended."""
        copy = self._copies.pop(number)
        for block in copy.blocks if self._watched and not copy.loads else ():
            stores = self._watched.get(block)
            if stores is not None:
                stores.discard(number)
                if not stores:
                    del self._watched[block]
        return copy

    def watch(self, copy: Copy) -> None:
        """The request of *copy* has ended: if it is a store, watch its blocks."""
        for block in () if copy.loads else copy.blocks:
            self._watched.setdefault(block, set()).add(copy.number)

    def touched(self, blocks: set[int]) -> set[int]:
        """The numbers of the watched stores with any of these *blocks*."""
        return {number for block in self._watched.keys() & blocks for number in self._watched[block]}


def job_blocks(blocks: Sequence[int], chunks: Sequence[int], size: int) -> list[int]:
    """Of a job's *blocks*, those of its *chunks*, of *size* blocks each."""
    return [block for place in chunks for block in blocks[place * size: (place + 1) * size]]
