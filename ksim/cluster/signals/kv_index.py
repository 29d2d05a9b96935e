"""Who has which KV blocks, as somebody knows it who reads the engines' KV events."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from attrs import define, field

from ksim.cluster.signals.scrapes import Losses
from ksim.engine.observer import RESOLUTION, Observer
from ksim.flow.block_keys import BlockKeys
from ksim.flow.request import Request

__all__ = ["KvIndex", "apply"]


def apply(batch: Sequence[int], present: set[int]) -> None:
    """Let a *batch* of events, a key or ~key each, change what is *present*."""
    for key in batch:
        if key >= 0:
            present.add(key)
        else:
            present.discard(~key)


@define(eq=False)
class KvIndex:
    """Sets of engines by the `keys` of the blocks that they have, with a bit for each of `observers` by its place.

    A batch of events counts a `delay` after it was sent, unless it is lost, and nobody sends it again.  `names` are
    what engines call the blocks of a request.  `below` are the keys of the chunks in each engine's own store.
    """

    keys: BlockKeys
    names: Callable[[Request], Sequence[Hashable]]
    observers: Sequence[Observer]
    delay: float
    losses: Sequence[Losses]
    below: Sequence[set[int]] = field(init=False)
    _holders: dict[int, int] = field(factory=dict, init=False)
    _read: list[int] = field(init=False)  # batches by observer
    _hits: Mapping[int, int] = field(factory=dict, init=False)
    _asked: Request | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._read = [0] * len(self.observers)
        self.below = [set() for _ in self.observers]

    def look(self, now: float) -> None:
        """Read all events that have arrived by *now*."""
        moment = now - self.delay + RESOLUTION
        self._asked = None
        for place, observer in enumerate(self.observers):
            events = observer.events
            while events and events[0][0] <= moment:
                _, batch, below = events.popleft()
                if not self.losses[place].lost(self._read[place]):
                    self._apply(batch, 1 << place)
                    apply(below, self.below[place])
                self._read[place] += 1

    def _apply(self, batch: Sequence[int], bit: int) -> None:
        holders = self._holders
        for key in batch:
            if key >= 0:
                holders[key] = holders.get(key, 0) | bit
            elif (left := holders.get(~key, 0) & ~bit):
                holders[~key] = left
            else:
                holders.pop(~key, None)

    def hit(self, number: int, request: Request) -> int:
        """How many tokens of the prompt of *request* engine *number* has, as far as is known."""
        if self._asked is not request:
            self._asked, self._hits = request, self._find(request)
        return self._hits[number]

    def _find(self, request: Request) -> Mapping[int, int]:
        """The same for all engines: one walk along the prompt, as long as any engine has its blocks.

        The last token is always computed.
        """
        size, after, key = self.keys.block_tokens, self.keys.after, -1
        having, hits = (1 << len(self.observers)) - 1, dict[int, int]()
        names = self.names(request)[:(request.prompt - 1) // size]
        for place, name in enumerate(names):
            key = after(key, name)
            still = having & self._holders.get(key, 0)
            if still != having:
                self._note(hits, having & ~still, place * size)
                having = still
                if not having:
                    return hits
        self._note(hits, having, len(names) * size)
        return hits

    def _note(self, hits: dict[int, int], engines: int, tokens: int) -> None:
        """Note that the *engines* have just so many *tokens*."""
        while engines:
            lowest = engines & -engines
            hits[self.observers[lowest.bit_length() - 1].number] = tokens
            engines ^= lowest
