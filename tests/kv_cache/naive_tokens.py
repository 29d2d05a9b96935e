"""The rules of SGLang's cache in tuples of tokens, slow and plain: what the real one is held against."""

from collections.abc import Hashable

from attrs import define, field

Tokens = tuple[Hashable, ...]


@define(eq=False)
class NaiveRequest:
    text: Tokens  # longer than it will ever get
    held: int = 0
    entered: int = 0

    @property
    def shared(self) -> Tokens:
        return self.text[: self.entered]


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
        return {end[:place] for end in self.ends for place in range(1, len(end) + 1)}

    def locks(self, prefix: Tokens) -> int:
        return sum(request.shared[: len(prefix)] == prefix for request in self.live)

    @property
    def used(self) -> int:
        own = sum(request.held - request.entered for request in self.live)
        return own + sum(self.locks(prefix) > 0 for prefix in self.cached)

    @property
    def empty(self) -> int:
        return self.capacity - len(self.cached) - sum(request.held - request.entered for request in self.live)

    def lookup(self, request: NaiveRequest, known: int) -> int:
        cached = self.cached
        return max((place for place in range(known) if request.text[:place] in cached), default=0)

    def fits(self, request: NaiveRequest, hit: int, tokens: int, spare: int) -> bool:
        unused = sum(self.locks(request.text[:place]) == 0 for place in range(1, hit + 1))
        return tokens - hit + unused + spare <= self.capacity - self.used

    def open(self, request: NaiveRequest, hit: int) -> None:
        request.held = request.entered = hit
        self.live.append(request)
        self.tick += 1
        self.touch(request.shared)

    def grow(self, request: NaiveRequest, tokens: int) -> bool:
        missing = tokens - request.held
        if missing > self.capacity - self.used:
            return False
        while missing > self.empty:
            leaves = [end for end in self.ends if not any(other != end and other[: len(end)] == end
                                                          for other in self.ends)]
            del self.ends[min((end for end in leaves if self.locks(end) == 0), key=self.ends.__getitem__)]
        request.held = max(request.held, tokens)
        return True

    def computed(self, request: NaiveRequest, tokens: int) -> None:
        if self.prefix_caching and tokens > request.entered:
            self.tick += 1
            text = request.text[:tokens]
            fork = max((place for place in range(tokens + 1) if text[:place] in self.cached), default=0)
            request.entered = tokens
            self.touch(text[:fork])
            self.touch(text)

    def touch(self, text: Tokens) -> None:
        """Use *text*, which from now on is the end of a run."""
        for place in range(1, len(text) + 1):
            if text[:place] in self.ends or place == len(text):
                self.ends[text[:place]] = self.tick

    def close(self, request: NaiveRequest, tokens: int) -> None:
        self.computed(request, tokens)
        self.live.remove(request)
        request.held = request.entered = 0
