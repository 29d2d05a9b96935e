"""Signals that arrive late: metrics by scrapes, and the blocks and chunks that engines and tiers hold by KV events."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heappop, heappush
from math import floor
from operator import invert
from typing import Any

from attrs import define, field

from ksim.cluster.signals import View
from ksim.engine.engine import Engine
from ksim.engine.observer import RESOLUTION, Observer, TurnClock
from ksim.flow.request import BlockKeys, Request
from ksim.foundation.rng import stream
from ksim.specs.settings import SignalSettings

__all__ = ["Losses", "Scrapes", "KvIndex", "apply", "SharedTier", "TierIndexes", "indexes_of"]


#: Draws that are made at once.
_DRAWS = 1024


@define(eq=False)
class Losses:
    """Draws which of the messages of a stream called `name` are lost: a `share` of them."""

    share: float
    seed: int
    name: str
    _lost: list[bool] = field(factory=list, init=False)
    _drawn: int = field(default=0, init=False)

    def lost(self, place: int) -> bool:
        """Whether message *place*, counted from 0, is lost; nobody asks for earlier ones any more."""
        while place >= self._drawn:
            draws = stream(self.seed, f"{self.name}.{self._drawn // _DRAWS}").random(_DRAWS)
            self._lost, self._drawn = (draws < self.share).tolist(), self._drawn + _DRAWS
        return self._lost[place % _DRAWS]


@define(eq=False)
class Scrapes:
    """Scrapes engines at multiples of the interval, all at once, and shows in their `views` what has arrived.

    After a lost scrape, views keep the values of the one before it.  With an interval of 0, views are always up to
    date.  `shown` has the values in all views as columns.
    """

    settings: SignalSettings
    views: Sequence[View]
    observers: Sequence[Observer]
    seed: int
    shown: Mapping[str, Sequence[float]] = field(factory=dict, init=False)
    _latest: int = field(default=-1, init=False)
    _losses: list[Losses] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note()
        self._losses = [Losses(self.settings.loss, self.seed, f"scrapes.{view.number}") for view in self.views]

    def look(self, now: float) -> None:
        """Show what has arrived by *now*."""
        moment, interval = now - self.settings.delay, self.settings.scrape_interval
        if moment < 0:
            return
        if not interval:
            self._catch_up(now)
            for view, observer in zip(self.views, self.observers, strict=True):
                _show(view, observer, moment)
            self._note()
            return
        latest = floor((moment + RESOLUTION) / interval)
        if latest > self._latest:
            self._catch_up(now)
            self._show_scrapes(latest)

    def _catch_up(self, now: float) -> None:
        for view in self.views:
            view.engine.catch_up(now)

    def _show_scrapes(self, latest: int) -> None:
        """Show the values of scrapes up to the *latest*."""
        before, self._latest = self._latest, latest
        for index, (view, observer) in enumerate(zip(self.views, self.observers, strict=True)):
            scrape = latest
            if self.settings.loss:
                losses = self._losses[index]
                kept = [number for number in range(before + 1, latest + 1) if not losses.lost(number)]
                scrape = kept[-1] if kept else -1
            if scrape >= 0:
                _show(view, observer, scrape * self.settings.scrape_interval)
        self._note()

    def _note(self) -> None:
        """Keep the values that are shown from now on, for the log."""
        views = self.views
        self.shown = {"waiting": [view.waiting for view in views], "running": [view.running for view in views],
                      "kv_usage": [view.kv_usage for view in views], "scraped_s": [view.scraped_at for view in views]}


def _show(view: View, observer: Observer, moment: float) -> None:
    """Show in *view* the metrics of its engine at *moment*."""
    readings, reading = observer.readings, None
    while readings and readings[0].time <= moment + RESOLUTION:
        reading = readings.popleft()
    view.scraped_at = moment
    if reading is not None:
        waiting = reading.waiting if reading.since is None else reading.waiting + observer.newcomers(reading.since)
        view.waiting, view.running, view.adapters = waiting, reading.running, reading.adapters
        view.kv_usage = reading.blocks / view.kv_blocks


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
        for index, observer in enumerate(self.observers):
            events = observer.events
            while events and events[0][0] <= moment:
                _, batch, below = events.popleft()
                if not self.losses[index].lost(self._read[index]):
                    self._apply(batch, 1 << index)
                    apply(below, self.below[index])
                self._read[index] += 1

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
        """The number of tokens of the prompt of *request* that engine *number* is known to have."""
        if self._asked is not request:
            self._asked, self._hits = request, self._find(request)
        return self._hits[number]

    def _find(self, request: Request) -> Mapping[int, int]:
        """The hits of all engines, by one walk along the prompt, as long as any engine has its blocks.

        The last token is always computed.
        """
        size, after, key = self.keys.block_tokens, self.keys.after, -1
        having, hits = (1 << len(self.observers)) - 1, dict[int, int]()
        names = self.names(request)[:(request.prompt - 1) // size]
        for index, name in enumerate(names):
            key = after(key, name)
            still = having & self._holders.get(key, 0)
            if still != having:
                self._note(hits, having & ~still, index * size)
                having = still
                if not having:
                    return hits
        self._note(hits, having, len(names) * size)
        return hits

    def _note(self, hits: dict[int, int], engines: int, tokens: int) -> None:
        """Set the hits of *engines*, a bit each, to so many *tokens*."""
        while engines:
            lowest = engines & -engines
            hits[self.observers[lowest.bit_length() - 1].number] = tokens
            engines ^= lowest


@define(eq=False)
class _StoreListener:
    """Appends to `events` the keys of chunks that get room in an engine's own store, and ~key of those that leave."""

    events: list[int]

    def taken(self, keys: Sequence[int]) -> None:
        self.events += keys

    def stored(self, keys: Sequence[int]) -> None:
        """Do nothing: chunks count from when they get room."""

    def evicted(self, keys: Sequence[int]) -> None:
        self.events += map(invert, keys)


@define(eq=False)
class SharedTier:
    """The `keys` of the chunks in a tier that engines share, by events that count a `delay` after they were sent.

    Events come from engines that may be ahead of each other, so they are sorted by their times.
    """

    clock: TurnClock
    delay: float
    losses: Losses
    keys: set[int] = field(factory=set, init=False)
    _events: list[tuple[float, int, Sequence[int]]] = field(factory=list, init=False)
    _sent: int = field(default=0, init=False)
    _read: int = field(default=0, init=False)

    def taken(self, keys: Sequence[int]) -> None:
        self._send(keys)

    def stored(self, keys: Sequence[int]) -> None:
        """Do nothing: chunks count from when they get room."""

    def evicted(self, keys: Sequence[int]) -> None:
        self._send([~key for key in keys])

    def _send(self, batch: Sequence[int]) -> None:
        if batch:
            heappush(self._events, (self.clock.now, self._sent, [*batch]))
            self._sent += 1

    def look(self, now: float) -> None:
        """Read all events that have arrived by *now*."""
        moment = now - self.delay + RESOLUTION
        while self._events and self._events[0][0] <= moment:
            batch = heappop(self._events)[2]
            if not self.losses.lost(self._read):
                apply(batch, self.keys)
            self._read += 1


@define(eq=False)
class TierIndexes:
    """The known contents of the tiers of all engines: of those that they share, and of each engine's own store.

    The events of own stores come in the batches of the engine's KV events.
    """

    settings: SignalSettings
    seed: int
    shared: dict[Any, SharedTier] = field(factory=dict, init=False)
    _clock: TurnClock | None = field(default=None, init=False)

    def of(self, engine: Engine, observer: Observer, own: set[int]) -> Mapping[str, set[int]]:
        """By tier, the keys of the chunks that *engine* is known to have; *own* are those of its own store."""
        connector = engine.scheduler.connector
        contents = dict[str, set[int]]()
        for name, tier in (connector.contents if connector is not None else {}).items():
            store: Any = tier
            if getattr(store, "shared", False):
                contents[name] = self._shared(store, name, engine, observer).keys
            else:
                store.listener, contents[name] = _StoreListener(observer.below), own
        return contents

    def _shared(self, store: Any, name: str, engine: Engine, observer: Observer) -> SharedTier:
        """The index of *store*, a tier that *engine* shares."""
        self._clock = observer.clock = self._clock or TurnClock(engine.env)
        if store not in self.shared:
            losses = Losses(self.settings.loss, self.seed, f"kv_events.{name}.{len(self.shared)}")
            store.listener = self.shared[store] = SharedTier(self._clock, self.settings.delay, losses)
        return self.shared[store]


def indexes_of(views: Sequence[View], observers: Sequence[Observer], settings: SignalSettings,
             seed: int) -> Sequence[KvIndex | SharedTier]:
    """Make indexes of blocks, and have *views* look requests up in them.

    There is one for each way of numbering blocks, and one for each tier that engines share.
    """
    tiers = TierIndexes(settings, seed)
    alike: dict[Any, list[tuple[View, Observer]]] = defaultdict(list)
    for view, observer in zip(views, observers, strict=True):
        scheduler = view.engine.scheduler
        alike[scheduler.cache.keys, type(scheduler)].append((view, observer))
    indexes = list[KvIndex | SharedTier]()
    for (keys, _), pairs in alike.items():
        losses = [Losses(settings.loss, seed, f"kv_events.{view.number}") for view, _ in pairs]
        index = KvIndex(keys, _namer(pairs[0][0].engine), [observer for _, observer in pairs], settings.delay, losses)
        indexes.append(index)
        for (view, observer), own in zip(pairs, index.below, strict=True):
            view.find_hit = _finder(index, view.number)
            if contents := tiers.of(view.engine, observer, own):
                view.find_tiers = _tier_finder(view, contents)
    return [*indexes, *tiers.shared.values()]


def _namer(engine: Engine) -> Callable[[Request], Sequence[Hashable]]:
    """A function from a request to the names of its blocks on *engine*."""
    return lambda request: engine.scheduler.block_table(request.keyed).content


def _finder(index: KvIndex, number: int) -> Callable[[Request], int]:
    return lambda request: index.hit(number, request)


def _tier_finder(view: View, contents: Mapping[str, set[int]]) -> Callable[[Request], Mapping[str, int]]:
    """A function from a request to the tokens that tiers below the GPU have of it, if these are their *contents*."""
    connector = view.engine.scheduler.connector
    return lambda request: connector.tier_hits(request, view.find_hit(request), contents)
