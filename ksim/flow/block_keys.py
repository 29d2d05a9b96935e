"""Keys of blocks: one number for equal tokens after equal prefixes, as vLLM's block hashes are."""

from collections.abc import Hashable, Sequence

from attrs import define, field

from ksim.flow.request import Request


@define(eq=False)
class BlockKeys:
    """Numbers blocks of `block_tokens` tokens by what is in them and before them.

    Whoever compares what is where (tiers of KV, routers, curves of hit rates) shares one of these, and keeps sets of
    numbers.  Keys count from 0, in the order in which blocks are first seen.
    """

    block_tokens: int
    _numbers: dict[tuple[int, Hashable], int] = field(factory=dict, init=False)

    def of(self, request: Request, blocks: int | None = None) -> list[int]:
        """The keys of the first *blocks* blocks of *request*, by default of those whose tokens have names.

        Blocks beyond these are the request's alone.
        """
        names = request.keyed.content(self.block_tokens)
        keys, key, numbers = list[int](), -1, self._numbers
        for name in names if blocks is None else names[:blocks]:
            key = numbers.setdefault((key, name), len(numbers))
            keys.append(key)
        for place in range(len(keys), blocks or 0):
            key = numbers.setdefault((key, ("", request.id, request.sequence, place)), len(numbers))
            keys.append(key)
        return keys

    def after(self, before: int, name: Hashable) -> int:
        """The key of the block called *name* after the one with the key *before*; -1 stands for the beginning."""
        return self._numbers.setdefault((before, name), len(self._numbers))


def leading(keys: Sequence[int], present: "set[int] | dict[int, object]") -> int:
    """How many of *keys*, from the first on, are *present*."""
    for place, key in enumerate(keys):
        if key not in present:
            return place
    return len(keys)
