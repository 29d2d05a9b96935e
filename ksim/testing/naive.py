"""The KV cache's rules in lists and one dictionary, slow and plain: what the real one is held against."""

from collections.abc import Hashable, Sequence

from attrs import define, field

Prefix = tuple[Hashable, ...]


@define
class NaiveRequest:
    content: Sequence[Hashable]
    number: int
    blocks: list[int] = field(factory=list)
    entered: int = 0

    def prefix(self, blocks: int) -> Prefix:
        """Names of the first *blocks* blocks; those beyond its content are nobody else's."""
        return (*self.content[:blocks], *((self.number, place) for place in range(len(self.content), blocks)))


@define
class NaiveCache:
    capacity: int
    block_tokens: int
    prefix_caching: bool
    free: list[int] = field(init=False)
    users: list[int] = field(init=False)
    found: dict[Prefix, list[int]] = field(factory=dict)  # blocks in the order of their entering

    def __attrs_post_init__(self) -> None:
        self.free = list(range(self.capacity))
        self.users = [0] * self.capacity

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def lookup(self, request: NaiveRequest, known: int) -> list[int]:
        hits: list[int] = []
        while self.prefix_caching and (len(hits) + 1) * self.block_tokens < known:
            if not self.found.get(request.prefix(len(hits) + 1)):
                break
            hits.append(self.found[request.prefix(len(hits) + 1)][0])
        return hits

    def fits(self, hits: Sequence[int], tokens: int, spare: int) -> bool:
        free = [block for block in self.free if block not in hits]
        return self.blocks(tokens) - len(hits) + spare <= len(free)

    def open(self, request: NaiveRequest, hits: Sequence[int]) -> None:
        for block in hits:
            if block in self.free:
                self.free.remove(block)
            self.users[block] += 1
        request.blocks, request.entered = list(hits), len(hits)

    def grow(self, request: NaiveRequest, tokens: int) -> bool:
        missing = self.blocks(tokens) - len(request.blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free.pop(0)
            self.users[block] = 1
            for holders in self.found.values():
                if block in holders:
                    holders.remove(block)
            request.blocks.append(block)
        return True

    def enter(self, request: NaiveRequest, tokens: int) -> None:
        while self.prefix_caching and (request.entered + 1) * self.block_tokens <= tokens:
            block = request.blocks[request.entered]
            request.entered += 1
            self.found.setdefault(request.prefix(request.entered), []).append(block)

    def close(self, request: NaiveRequest) -> None:
        left = []
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                left.append(block)
        findable = [block for block in left if any(block in holders for holders in self.found.values())]
        self.free = [block for block in left if block not in findable] + self.free + findable
        request.blocks, request.entered = [], 0
