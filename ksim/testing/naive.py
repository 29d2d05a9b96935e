"""vLLM's KV cache as lists and one dictionary: a slow and plain model to compare real caches with."""

from collections.abc import Hashable, Sequence

from attrs import define, field

Prefix = tuple[Hashable, ...]


@define
class NaiveRequest:
    """The blocks of one request.  Other requests can find the first `published` of them."""

    content: Sequence[Hashable]
    number: int
    blocks: list[int] = field(factory=list)
    published: int = 0

    def prefix(self, blocks: int) -> Prefix:
        """The names of the first *blocks* blocks.  Names after the end of `content` are unique to the request."""
        return (*self.content[:blocks], *((self.number, index) for index in range(len(self.content), blocks)))


@define
class NaiveCache:
    """The free blocks in order of eviction, and the `cached` blocks of each prefix, oldest first."""

    capacity: int
    block_tokens: int
    prefix_caching: bool
    free_blocks: list[int] = field(init=False)
    ref_counts: list[int] = field(init=False)
    cached: dict[Prefix, list[int]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.free_blocks = list(range(self.capacity))
        self.ref_counts = [0] * self.capacity

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def find_prefix(self, request: NaiveRequest, num_tokens: int) -> list[int]:
        hits: list[int] = []
        while self.prefix_caching and (len(hits) + 1) * self.block_tokens < num_tokens:
            if not self.cached.get(request.prefix(len(hits) + 1)):
                break
            hits.append(self.cached[request.prefix(len(hits) + 1)][0])
        return hits

    def can_allocate(self, hits: Sequence[int], tokens: int, spare: int) -> bool:
        free = [block for block in self.free_blocks if block not in hits]
        return self.blocks(tokens) - len(hits) + spare <= len(free)

    def attach_prefix(self, request: NaiveRequest, hits: Sequence[int]) -> None:
        for block in hits:
            if block in self.free_blocks:
                self.free_blocks.remove(block)
            self.ref_counts[block] += 1
        request.blocks, request.published = list(hits), len(hits)

    def allocate(self, request: NaiveRequest, tokens: int) -> bool:
        missing = self.blocks(tokens) - len(request.blocks)
        if missing > len(self.free_blocks):
            return False
        for _ in range(missing):
            block = self.free_blocks.pop(0)
            self.ref_counts[block] = 1
            for holders in self.cached.values():
                if block in holders:
                    holders.remove(block)
            request.blocks.append(block)
        return True

    def publish(self, request: NaiveRequest, tokens: int) -> None:
        while self.prefix_caching and (request.published + 1) * self.block_tokens <= tokens:
            block = request.blocks[request.published]
            request.published += 1
            self.cached.setdefault(request.prefix(request.published), []).append(block)

    def free(self, request: NaiveRequest) -> None:
        released = []
        for block in reversed(request.blocks):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                released.append(block)
        reusable = [block for block in released if any(block in holders for holders in self.cached.values())]
        unhashed = [block for block in released if block not in reusable]
        self.free_blocks = unhashed + self.free_blocks + reusable
        request.blocks, request.published = [], 0
