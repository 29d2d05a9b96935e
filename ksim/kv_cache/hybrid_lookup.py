"""The longest prefix that all groups of a hybrid cache have: one length for all, as vLLM finds it."""

from collections.abc import Sequence
from typing import Self

from attrs import frozen

from ksim.kv_cache.cache import PrefixHit
from ksim.kv_cache.groups import Group
from ksim.kv_cache.hybrid_pool import CachedBlock, PrefixNode

Path = Sequence[PrefixNode]


@frozen
class GroupHit:
    """The `blocks` of one group that a hit has, from place `first` on; if it is a `state`, the one at the end."""

    first: int
    blocks: Sequence[CachedBlock]
    state: bool = False


@frozen
class AlikeGroups:
    """Groups `numbers` of the same kind, which are looked up together: a block counts if all of them have it."""

    group: Group
    numbers: Sequence[int]
    unit: int
    alignment: int

    def find(self, path: Path, tokens: int) -> tuple[int, int]:
        """The first and the last place plus one of the longest hit within *tokens* tokens."""
        limit = tokens // self.group.block_tokens
        if self.group.kind == "full":
            return 0, self._aligned(self._run(path, 0, limit))
        if self.group.kind == "chunk":
            first = tokens // self.group.reach * self.group.reach // self.group.block_tokens
            return first, self._run(path, first, limit)
        return self._find_window(path, limit)

    def _find_window(self, path: Path, limit: int) -> tuple[int, int]:
        """From the right, the first run of as many cached blocks as are needed, with an aligned end."""
        needed, end, run = self.group.needed, 0, 0
        for place in range(min(limit, len(path) * self.unit // self.group.block_tokens) - 1, -1, -1):
            if not self._has(path, place):
                run = 0
                continue
            if not run:
                end = place + 1
                if end * self.group.block_tokens % self.alignment:
                    continue
            run += 1
            if run >= needed:
                return place, end
        return 0, 0 if self.group.kind == "state" else self._aligned(run)

    def _run(self, path: Path, first: int, limit: int) -> int:
        """The place after the run of cached blocks from *first* on."""
        place = first
        while place < limit and self._has(path, place):
            place += 1
        return place

    def _has(self, path: Path, place: int) -> bool:
        unit = (place + 1) * self.group.block_tokens // self.unit - 1
        if unit >= len(path):
            return False
        blocks = path[unit].blocks
        return all(number in blocks for number in self.numbers)

    def _aligned(self, places: int) -> int:
        tokens = places * self.group.block_tokens
        return (tokens - tokens % self.alignment) // self.group.block_tokens

    def hits(self, path: Path, first: int, end: int) -> list[tuple[int, GroupHit]]:
        """The blocks of each group at places *first* to *end* - 1."""
        size = self.group.block_tokens
        nodes = [path[(place + 1) * size // self.unit - 1] for place in range(first, end)]
        return [(number, GroupHit(first, [node.blocks[number][0] for node in nodes], self.group.kind == "state"))
                for number in self.numbers]


@frozen
class Lookup:
    """Groups that are alike together, full attention first."""

    kinds: Sequence[AlikeGroups]

    @classmethod
    def of(cls, groups: Sequence[Group], unit: int, alignment: int) -> Self:
        """The lookup for *groups*, whose prefixes are named by the *unit* and hit in multiples of *alignment*."""
        alike: dict[Group, list[int]] = {}
        for number, group in enumerate(groups):
            alike.setdefault(group, []).append(number)
        kinds = [AlikeGroups(group, numbers, unit, alignment) for group, numbers in alike.items()]
        return cls(sorted(kinds, key=lambda kind: kind.group.kind != "full"))

    def find(self, path: Path, most: int) -> tuple[PrefixHit, int]:
        """The longest hit of at most *most* tokens on *path*, and the longest that some group had on the way."""
        places: dict[int, tuple[int, int]] = {}
        tokens, longest = most, 0
        while True:
            shorter = tokens
            for number, kind in enumerate(self.kinds):
                if kind.group.kind == "full" and number in places:  # of a run from the start, any part is cached
                    shorter = min(shorter, places[number][1] * kind.group.block_tokens)
                    continue
                places[number] = kind.find(path, shorter)
                shorter = places[number][1] * kind.group.block_tokens
                longest = max(longest, shorter)
            if shorter >= tokens:
                break
            tokens = shorter
            if self._in_one_pass:
                break
        return self._hit(path, places, tokens), longest

    @property
    def _in_one_pass(self) -> bool:
        return len(self.kinds) == 2 and self.kinds[0].group.kind == "full"

    def _hit(self, path: Path, places: dict[int, tuple[int, int]], tokens: int) -> PrefixHit:
        if not tokens:
            return PrefixHit(0)
        found, evictable = {}, 0
        for place, kind in enumerate(self.kinds):
            end = tokens // kind.group.block_tokens
            for number, hit in kind.hits(path, min(places[place][0], end), end):
                found[number] = hit
                skipped = max(0, kind.group.out_of_reach(tokens) - hit.first)
                evictable += sum(not block.users for block in hit.blocks[skipped:])
        return PrefixHit(tokens, tuple(found[number] for number in sorted(found)), evictable)
