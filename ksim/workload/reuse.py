"""Which blocks of a trace come again, and how many others are used in between: stack distances, in one pass."""

from collections.abc import Iterable, Iterator

import attrs
import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.flow.block_keys import BlockKeys
from ksim.flow.request import Request

Integers = NDArray[np.int64]


@frozen
class Reuses:
    """Runs of blocks that were last used by the request `since`, and are used again by the request `by`: columns.

    A run has `blocks` blocks of the prompt of `by`, from its block `first` on; the prompt ends `missing` tokens before
    the last of them does.  `distance` counts the different blocks that were used after `since`, and `left` those of
    `since` that were not used after it, which begin with this run.
    """

    since: Integers
    by: Integers
    first: Integers
    blocks: Integers
    missing: Integers
    distance: Integers
    left: Integers


@define
class Sums:
    """Sums of the first of many numbers, which grow and change: a Fenwick tree."""

    _tree: list[int] = field(factory=lambda: [0])

    def append(self, number: int) -> None:
        place = len(self._tree)
        self._tree.append(number + self.first(place - 1) - self.first(place & (place - 1)))

    def add(self, place: int, number: int) -> None:
        place += 1
        while place < len(self._tree):
            self._tree[place] += number
            place += place & -place

    def first(self, count: int) -> int:
        """The sum of the first *count* numbers."""
        total = 0
        while count:
            total += self._tree[count]
            count &= count - 1
        return total


@frozen
class Cut:
    """A request in blocks: keys of those that have names, how many it uses, and how many of these its prompt has.

    The prompt ends `missing` tokens before its last block does.
    """

    keys: list[int]
    used: int
    prompt: int
    missing: int


@define
class Cutter:
    """Cuts requests into blocks of `block_tokens`.

    Where a trace names blocks of this size, each name counts, also that of a partial block at the end.  Otherwise the
    blocks are cut anew, and only full ones count, as in an engine.  Blocks without a name are the request's alone.
    """

    block_tokens: int
    _keys: BlockKeys = field(init=False)

    @_keys.default
    def _empty(self) -> BlockKeys:
        return BlockKeys(self.block_tokens)

    def cut(self, request: Request) -> Cut:
        full, size = request.prompt // self.block_tokens, self.block_tokens
        if request.chunk_tokens != size:
            keys = self._keys.of(request)
            return Cut(keys, max(len(keys), full), full, 0)
        # A prompt as long as all names: none of them is cut off.
        keys = self._keys.of(attrs.evolve(request, prompt=max(1, len(request.chunks) * size)))
        prompt = max(full, min(len(keys), -(-request.prompt // size)))
        return Cut(keys, max(len(keys), prompt), prompt, max(0, prompt * size - request.prompt))


@define
class Reuse:
    """Follows the requests of a trace, and collects its `Reuses`.

    A block is used whenever those before it in its prompt are.  So of the blocks that a request used, those that nobody
    used since are its last ones, and one number a request says how many.  That makes a request cost O(log requests),
    beside a look at each of its blocks.
    """

    cutter: Cutter
    requests: int = 0
    prompt_blocks: int = 0
    prompt_tokens: int = 0
    distinct: int = 0
    _left: Sums = field(factory=Sums)
    #: The last request that used each block, by the block's key.
    _users: list[int] = field(factory=list)
    #: How many blocks each request used.
    _used: list[int] = field(factory=list)
    _rows: list[tuple[int, ...]] = field(factory=list)

    @classmethod
    def of(cls, requests: Iterable[Request], block_tokens: int) -> "Reuse":
        reuse = cls(Cutter(block_tokens))
        for request in requests:
            reuse.add(request)
        return reuse

    def add(self, request: Request) -> None:
        cut = self.cutter.cut(request)
        known = self._known(cut.keys)
        for since, first, end in self._runs(cut.keys[:known]):
            self._reuse(cut, since, first, end)
        self._users += [self.requests] * (len(cut.keys) - known)
        self._left.append(cut.used)
        self._used.append(cut.used)
        self.requests += 1
        self.distinct += cut.used - known
        self.prompt_blocks += cut.prompt
        self.prompt_tokens += request.prompt

    def _known(self, keys: list[int]) -> int:
        """How many of *keys* were used before: new ones are numbered in order, and all after a new one are new."""
        new = keys[-1] - len(self._users) + 1 if keys else 0
        return len(keys) - max(0, new)

    def _runs(self, keys: list[int]) -> Iterator[tuple[int, int, int]]:
        """Each request that used some of *keys* last, and the places at which these begin and end."""
        users, begin, user = self._users, 0, -1
        for place, key in enumerate(keys):
            if users[key] != user:
                if place:
                    yield user, begin, place
                begin, user = place, users[key]
            users[key] = self.requests
        if keys:
            yield user, begin, len(keys)

    def _reuse(self, cut: Cut, since: int, first: int, end: int) -> None:
        inside = min(end, cut.prompt)
        if inside > first:
            distance = self.distinct - self._left.first(since + 1)
            missing, left = cut.missing if inside == cut.prompt else 0, self._used[since] - first
            self._rows.append((since, self.requests, first, inside - first, missing, distance, left))
        self._left.add(since, first - end)

    def reuses(self) -> Reuses:
        """All so far, by request and place."""
        return Reuses(*np.array(self._rows, np.int64).reshape(-1, 7).T)
