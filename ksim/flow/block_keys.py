"""Keys of blocks: one number for equal tokens after equal prefixes, as vLLM's block hashes are."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

from attrs import define, field

from ksim.flow.request import Request


class _Numbers(dict[tuple[int, Hashable], int]):
    """Numbers of blocks by the number of the one before and their names; what is new has the next number."""

    def __missing__(self, block: tuple[int, Hashable]) -> int:
        number = self[block] = len(self)
        return number


@define(eq=False)
class BlockKeys:
    """Numbers blocks of `block_tokens` tokens by what is in them and before them.

    Whoever compares what is where (tiers of KV, routers, curves of hit rates) shares one of these, and keeps sets of
    numbers.  Keys count from 0, in the order in which blocks are first seen.
    """

    block_tokens: int
    _numbers: _Numbers = field(factory=_Numbers, init=False)
    _blocks: list[tuple[int, Hashable]] = field(factory=list, init=False)

    def of(self, request: Request, blocks: int | None = None) -> list[int]:
        """The keys of the first *blocks* blocks of *request*, by default of those whose tokens have names.

        Blocks beyond these are the request's alone.
        """
        names = request.keyed.content(self.block_tokens)
        key, numbers = -1, self._numbers
        keys = [key := numbers[key, name] for name in (names if blocks is None else names[:blocks])]
        for place in range(len(keys), blocks or 0):
            key = numbers[key, ("", request.id, request.sequence, place)]
            keys.append(key)
        return keys

    def runs(self, names: Iterable[Hashable], blocks: int) -> list[int]:
        """Keys of runs of so many *blocks* each, by the *names* of the first runs of a prompt."""
        key, numbers = -1, self._numbers
        return [key := numbers[key, (blocks, name)] for name in names]

    def after(self, before: int, name: Hashable) -> int:
        """The key of the block called *name* after the one with the key *before*; -1 stands for the beginning."""
        return self._numbers[before, name]

    def block(self, key: int) -> tuple[int, Hashable]:
        """The key of the block before the one with this *key*, and its name."""
        numbers, blocks = self._numbers, self._blocks
        if key >= len(blocks):
            blocks += [*islice(reversed(numbers), len(numbers) - len(blocks))][::-1]
        return blocks[key]


def leading(keys: Sequence[int], present: "set[int] | dict[int, object]") -> int:
    """How many of *keys*, from the first on, are *present*."""
    for place, key in enumerate(keys):
        if key not in present:
            return place
    return len(keys)
