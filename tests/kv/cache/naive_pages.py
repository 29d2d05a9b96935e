"""SGLang's radix cache in tuples of pages, slow and plain: the model that the real one is compared with."""

from collections.abc import Hashable

from attrs import define, field

Pages = tuple[Hashable, ...]


@define(eq=False)
class NaiveRequest:
    text: Pages  # longer than it will ever get
    slots: int = 0  # in tokens
    published: int = 0  # in pages

    @property
    def shared(self) -> Pages:
        return self.text[: self.published]


@define
class NaivePages:
    """`ends` are the prefixes at which the nodes of the tree end, and when each was last used."""

    capacity: int
    page: int
    prefix_caching: bool
    live: list[NaiveRequest] = field(factory=list)
    ends: dict[Pages, float] = field(factory=dict)
    ticks: int = 0

    @property
    def cached(self) -> set[Pages]:
        """Every prefix whose last page is in the tree."""
        return {end[:length] for end in self.ends for length in range(1, len(end) + 1)}

    @property
    def empty(self) -> int:
        own = sum(-(-request.slots // self.page) - request.published for request in self.live)
        return self.capacity - len(self.cached) - own

    @property
    def evictable(self) -> int:
        return sum(not self.locks(prefix) for prefix in self.cached)

    def locks(self, prefix: Pages) -> int:
        return sum(request.shared[: len(prefix)] == prefix for request in self.live)

    def tick(self) -> float:
        self.ticks += 1
        return float(self.ticks)

    def found(self, text: Pages, tokens: int) -> int:
        """How many pages of *text* are in the tree, of the first *tokens* tokens."""
        cached = self.cached if self.prefix_caching else set()
        return max((length for length in range(1, tokens // self.page + 1) if text[:length] in cached), default=0)

    def look_up(self, text: Pages, tokens: int) -> int:
        pages = self.found(text, tokens)
        self.split(text[:pages])
        if self.prefix_caching and tokens >= self.page:
            now = self.tick()
            for above, end in enumerate(sorted(self.path(text, pages), key=len, reverse=True)):
                self.ends[end] = now - above / 1000
        return pages

    def path(self, text: Pages, pages: int) -> list[Pages]:
        """The nodes that end within the first *pages* pages of *text*, from the root on."""
        return [text[:length] for length in range(1, pages + 1) if text[:length] in self.ends]

    def split(self, prefix: Pages) -> None:
        """Let a node end where *prefix* does; what is below it is used later than it."""
        if prefix and prefix not in self.ends:
            below = min((end for end in self.ends if end[: len(prefix)] == prefix), key=len)
            self.ends[prefix] = self.tick()
            self.ends[below] = self.tick()

    def lock(self, request: NaiveRequest, pages: int) -> None:
        request.slots, request.published = pages * self.page, pages
        self.live.append(request)

    def make_room(self, tokens: int) -> bool:
        while self.empty * self.page < tokens:
            leaves = [end for end in self.ends if not self.locks(end) and not any(
                other != end and other[: len(end)] == end for other in self.ends)]
            if not leaves:
                return False
            del self.ends[min(leaves, key=self.ends.__getitem__)]
        return True

    def publish_computed(self, request: NaiveRequest, tokens: int, prompt: int) -> None:
        pages, whole = tokens // self.page, prompt // self.page
        if self.prefix_caching and pages:
            self.insert(request.text, pages)
            if 0 < whole < pages:
                self.insert(request.text, whole)
            request.published = pages

    def insert(self, text: Pages, pages: int) -> None:
        agreed = self.found(text, pages * self.page)
        for end in self.path(text, agreed):
            self.ends[end] = self.tick()
        if text[:agreed] and text[:agreed] not in self.ends:
            self.tick()  # the node that is split is used before
            self.split(text[:agreed])
        if agreed < pages:
            self.ends[text[:pages]] = self.tick()

    def free(self, request: NaiveRequest, tokens: int, prompt: int) -> None:
        self.publish_computed(request, tokens, prompt)
        self.live.remove(request)
        request.slots = request.published = 0
