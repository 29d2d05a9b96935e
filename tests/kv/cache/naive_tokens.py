"""SGLang's cache in tuples of tokens, slow and plain: the model that the real one is compared with."""

from collections.abc import Hashable

from attrs import define, field

Tokens = tuple[Hashable, ...]


@define(eq=False)
class NaiveRequest:
    text: Tokens  # longer than it will ever get
    num_slots: int = 0
    published: int = 0

    @property
    def shared(self) -> Tokens:
        return self.text[: self.published]


@define
class NaiveTokens:
    """`ends` are the prefixes at which the runs of the tree end, and when each was last used."""

    capacity: int
    prefix_caching: bool
    live: list[NaiveRequest] = field(factory=list)
    ends: dict[Tokens, int] = field(factory=dict)
    tick: int = 0

    @property
    def cached(self) -> set[Tokens]:
        """Every prefix whose last token has a slot in the tree."""
        return {end[:length] for end in self.ends for length in range(1, len(end) + 1)}

    def locks(self, prefix: Tokens) -> int:
        return sum(request.shared[: len(prefix)] == prefix for request in self.live)

    @property
    def used(self) -> int:
        own = sum(request.num_slots - request.published for request in self.live)
        return own + sum(self.locks(prefix) > 0 for prefix in self.cached)

    @property
    def empty(self) -> int:
        return self.capacity - len(self.cached) - sum(request.num_slots - request.published for request in self.live)

    def find_prefix(self, request: NaiveRequest, num_tokens: int) -> int:
        cached = self.cached
        return max((length for length in range(num_tokens) if request.text[:length] in cached), default=0)

    def can_allocate(self, request: NaiveRequest, hit: int, tokens: int, spare: int) -> bool:
        evictable = sum(self.locks(request.text[:length]) == 0 for length in range(1, hit + 1))
        return tokens - hit + evictable + spare <= self.capacity - self.used

    def attach_prefix(self, request: NaiveRequest, hit: int) -> None:
        request.num_slots = request.published = hit
        self.live.append(request)
        self.tick += 1
        self.touch(request.shared)

    def allocate(self, request: NaiveRequest, tokens: int) -> bool:
        missing = tokens - request.num_slots
        if missing > self.capacity - self.used:
            return False
        while missing > self.empty:
            leaves = [end for end in self.ends if not any(other != end and other[: len(end)] == end
                                                          for other in self.ends)]
            del self.ends[min((end for end in leaves if self.locks(end) == 0), key=self.ends.__getitem__)]
        request.num_slots = max(request.num_slots, tokens)
        return True

    def publish_computed(self, request: NaiveRequest, tokens: int) -> None:
        if self.prefix_caching and tokens > request.published:
            self.tick += 1
            text = request.text[:tokens]
            fork = max((length for length in range(tokens + 1) if text[:length] in self.cached), default=0)
            request.published = tokens
            self.touch(text[:fork])
            self.touch(text)

    def touch(self, text: Tokens) -> None:
        """Use *text*, which from now on is the end of a run."""
        for length in range(1, len(text) + 1):
            if text[:length] in self.ends or length == len(text):
                self.ends[text[:length]] = self.tick

    def free(self, request: NaiveRequest, tokens: int) -> None:
        self.publish_computed(request, tokens)
        self.live.remove(request)
        request.num_slots = request.published = 0
