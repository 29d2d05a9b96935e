"""What a router sees: views of the engines, brought up to the moment of each choice."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from attrs import define, field

from ksim.cluster.signals import late_events, signals_of
from ksim.cluster.signals.books import Books
from ksim.cluster.signals.kv_index import KvIndex
from ksim.cluster.signals.scrapes import Losses, Scrapes
from ksim.cluster.signals.tier_index import SharedTier, TierIndexes
from ksim.cluster.signals.view import ATTRIBUTES, View, view_class
from ksim.engine.engine import Engine
from ksim.engine.observer import Answer, Observer
from ksim.flow.request import Request
from ksim.flow.routing import Seen
from ksim.specs.signals import SignalSettings

__all__ = ["EngineViews"]

#: What is noted of views, which is read for each choice.
_NUMBER, _HIT = attrgetter("number"), attrgetter("hit")
_BOOKS = [(name, attrgetter(name)) for name in ATTRIBUTES["books"]]


@define(eq=False)
class EngineViews:
    """`views` of all engines, by the signals that a router goes by.

    Engines keep facts with their times, and each kind of signal takes in those that have arrived: `books`, `scrapes`
    and `indexes`, one for each size of block.  So no signal is an event of SimPy's.
    """

    views: Sequence[View]
    router: Any
    signals: tuple[str, ...]
    books: Books | None = None
    scrapes: Scrapes | None = None
    indexes: Sequence[KvIndex | SharedTier] = field(factory=tuple)

    @classmethod
    def of(cls, engines: Sequence[Any], router: Any, settings: SignalSettings, seed: int, key: str) -> "EngineViews":
        """What *router*, which is the scenario's *key*, sees of *engines*, which have not begun."""
        signals = signals_of(router, key)
        views = [view_class(signals).of(engine) for engine in engines]
        seen = [view for view in views if signals and isinstance(view.engine, Engine)]
        answers: list[Answer] = []
        late = late_events(signals, settings)
        observers = [_observer(view, signals, settings, answers, late) for view in seen]
        books = Books.of({view.number: view for view in seen}, answers, router) if "books" in signals else None
        scrapes = Scrapes(settings, seen, observers, seed) if "metrics" in signals else None
        indexes = _indexes(seen, observers, settings, seed) if late else ()
        if "kv_events" in signals and not late:
            for view in seen:
                view.find_hit, view.find_tiers = view.engine.prefix_hit, view.engine.tier_hits
        return cls(views, router, signals, books, scrapes, indexes)

    def look(self, request: Request, now: float) -> None:
        """Bring the views up to *now*, when an engine is chosen for *request*."""
        self.refresh(now)
        if self.books is not None:
            self.books.routed(request)

    def refresh(self, now: float) -> None:
        """Bring the views up to *now*."""
        if self.books is not None:
            self.books.look(now)
        if self.scrapes is not None:
            self.scrapes.look(now)
        for index in self.indexes:
            index.look(now)
        if "kv_events" in self.signals:
            for view in self.views:
                view.hit = -1

    @property
    def tells(self) -> bool:
        """Whether what is seen is worth noting: there is a choice, and the router looks."""
        return len(self.views) > 1 and bool(self.signals)

    def seen(self, candidates: Sequence[View]) -> Seen:
        """What the router saw of *candidates* when it chose, and how it scored them."""
        scores = getattr(self.router, "scores", None)
        return Seen(
            array("i", [*map(_NUMBER, candidates)]),
            {name: array("q", [*map(read, candidates)]) for name, read in _BOOKS} if self.books else {},
            self._metrics(candidates) if self.scrapes else {},
            array("i", [*map(_HIT, candidates)]) if "kv_events" in self.signals else None,
            None if scores is None else array("d", scores))

    def _metrics(self, candidates: Sequence[View]) -> Mapping[str, Sequence[float]]:
        """The metrics of *candidates*, in their order."""
        assert self.scrapes is not None, "only who goes by metrics has seen some"
        shown = self.scrapes.shown
        if candidates is self.views:
            return shown
        places = {view.number: place for place, view in enumerate(self.scrapes.views)}
        return {name: [column[places[view.number]] for view in candidates] for name, column in shown.items()}


def _observer(view: View, signals: tuple[str, ...], settings: SignalSettings, answers: list[Answer],
              late: bool) -> Observer:
    """Have the engine of *view* observed."""
    cache = view.engine.scheduler.cache
    observer = Observer(view.number, answers if "books" in signals else None,
                        settings.scrape_interval if "metrics" in signals else None,
                        cache.tree.tells if late else None)
    view.engine.show(observer)
    return observer


def _indexes(views: Sequence[View], observers: Sequence[Observer], settings: SignalSettings,
             seed: int) -> Sequence[KvIndex | SharedTier]:
    """The indexes of blocks, one for each way of numbering them and for each tier that engines share, and have *views*
    look requests up in them."""
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
            if known := tiers.of(view.engine, observer, own):
                view.find_tiers = _tier_finder(view, known)
    return [*indexes, *tiers.shared.values()]


def _namer(engine: Engine) -> Callable[[Request], Sequence[Hashable]]:
    """What says how *engine* calls the blocks of a request."""
    return lambda request: engine.scheduler.block_table(request.keyed).content


def _finder(index: KvIndex, number: int) -> Callable[[Request], int]:
    return lambda request: index.hit(number, request)


def _tier_finder(view: View, known: Mapping[str, set[int]]) -> Callable[[Request], Mapping[str, int]]:
    """What says which tiers below the GPU have the rest of a prompt, if they have what is *known* of them."""
    connector = view.engine.scheduler.connector
    return lambda request: connector.tier_hits(request, view.find_hit(request), known)
