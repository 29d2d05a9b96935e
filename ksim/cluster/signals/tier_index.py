"""What is in tiers of KV below the GPU, as somebody knows it who reads their KV events."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from operator import invert
from typing import Any

from attrs import define, field

from ksim.cluster.signals.kv_index import apply
from ksim.cluster.signals.scrapes import Losses
from ksim.engine.engine import Engine
from ksim.engine.observer import RESOLUTION, Observer, TurnClock
from ksim.specs.signals import SignalSettings

__all__ = ["SharedTier", "TierIndexes"]


@define(eq=False)
class _Told:
    """Adds to `tells` the keys of chunks that get room in an engine's own store, and ~key of those that leave."""

    tells: list[int]

    def taken(self, keys: Sequence[int]) -> None:
        self.tells += keys

    def stored(self, keys: Sequence[int]) -> None:
        """Do nothing: it was told of them when they got room."""

    def evicted(self, keys: Sequence[int]) -> None:
        self.tells += map(invert, keys)


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
        """Do nothing: it was told of them when they got room."""

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
    """What is known of the tiers of all engines: of those that they share, and of each engine's own store.

    Own stores are told of in the batches of the engine's KV events.
    """

    settings: SignalSettings
    seed: int
    shared: dict[Any, SharedTier] = field(factory=dict, init=False)
    _clock: TurnClock | None = field(default=None, init=False)

    def of(self, engine: Engine, observer: Observer, own: set[int]) -> Mapping[str, set[int]]:
        """By tier, the keys of the chunks that *engine* is known to have; *own* are those of its own store."""
        connector = engine.scheduler.connector
        known = dict[str, set[int]]()
        for name, tier in (connector.contents if connector is not None else {}).items():
            store: Any = tier
            if getattr(store, "shared", False):
                known[name] = self._shared(store, name, engine, observer).keys
            else:
                store.listener, known[name] = _Told(observer.below), own
        return known

    def _shared(self, store: Any, name: str, engine: Engine, observer: Observer) -> SharedTier:
        """The index of *store*, a tier that *engine* shares."""
        self._clock = observer.clock = self._clock or TurnClock(engine.env)
        if store not in self.shared:
            losses = Losses(self.settings.loss, self.seed, f"kv_events.{name}.{len(self.shared)}")
            store.listener = self.shared[store] = SharedTier(self._clock, self.settings.delay, losses)
        return self.shared[store]
