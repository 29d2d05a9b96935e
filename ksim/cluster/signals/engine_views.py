"""The views of engines that a router sees, brought up to date at each choice, and the router's own books.

Books count the requests that it has sent to engines, and the answers that have passed through it.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ksim.cluster.signals import ATTRIBUTES, View, late_events, signals_of, view_class
from ksim.engine.engine import Engine
from ksim.engine.observer import ENDED, FIRST_TOKEN, RESOLUTION, SENT, Answer, Observer
from ksim.flow.events import Seen
from ksim.flow.request import Request
from ksim.specs.settings import SignalSettings

if TYPE_CHECKING:
    from ksim.cluster.signals.kv_index import KvIndex, Scrapes, SharedTier

__all__ = ["Books", "EngineViews"]


#: A sequence on an engine: the engine's number, its request's, and its own.
_Sequence = tuple[int, int, int]


@define(eq=False)
class Books:
    """Counts the requests under way in `views`, by engine number, and calls the router's hooks at answers.

    `answers` is a heap of the answers that engines have noted so far, some of which may lie in the future.
    """

    views: Mapping[int, View]
    answers: list[Answer]
    _on_first_token: Callable[[Request, int, float], object] | None
    _on_end: Callable[[Request, int, float], object] | None
    #: The prompt tokens of sequences without a first token.
    _prefilling: dict[_Sequence, int] = field(factory=dict, init=False)
    #: Requests as routers were asked about them, and on which engines they have a first token, if a router asks.
    _requests: dict[int, Request] = field(factory=dict, init=False)
    _begun: set[tuple[int, int]] = field(factory=set, init=False)

    @classmethod
    def of(cls, views: Mapping[int, View], answers: list[Answer], router: Any) -> "Books":
        """The books of *router*."""
        return cls(views, answers, getattr(router, "on_first_token", None), getattr(router, "on_end", None))

    def routed(self, request: Request) -> None:
        """Keep *request*, for which the router has chosen, for the router's hooks."""
        if self._on_first_token or self._on_end:
            self._requests[request.id] = request

    def look(self, now: float) -> None:
        """Count all answers up to *now*."""
        answers, moment = self.answers, now + RESOLUTION
        while answers and answers[0].time <= moment:
            self._take_in(heappop(answers))

    def _take_in(self, answer: Answer) -> None:
        view, request = self.views[answer.engine], answer.request
        sequence = answer.engine, request.id, request.sequence
        if answer.kind == SENT:
            self._prefilling[sequence] = request.prompt
            view.outstanding += 1
            view.outstanding_tokens += request.prompt
            view.prefill_tokens += request.prompt
            return
        view.prefill_tokens -= self._prefilling.pop(sequence, 0)
        if answer.kind == FIRST_TOKEN:
            self._call_on_first_token(answer)
            return
        view.outstanding -= 1
        view.outstanding_tokens -= request.prompt
        if answer.over:
            self._call_on_end(answer)

    def _call_on_first_token(self, answer: Answer) -> None:
        """Call the hook at the first token of the first of a request's sequences."""
        begun = answer.engine, answer.request.id
        if self._on_first_token and begun not in self._begun and answer.request.id in self._requests:
            self._begun.add(begun)
            self._on_first_token(self._requests[answer.request.id], answer.engine, answer.time)

    def _call_on_end(self, answer: Answer) -> None:
        """Call the hook at the end of a request on an engine; a prefill engine is not its last one."""
        assert answer.kind == ENDED, "what has ended had been sent"
        self._begun.discard((answer.engine, answer.request.id))
        last = self.views[answer.engine].role != "prefill"
        request = self._requests.pop(answer.request.id, None) if last else self._requests.get(answer.request.id)
        if self._on_end and request is not None:
            self._on_end(request, answer.engine, answer.time)


#: Readers of the attributes of views that are logged for each choice.
_NUMBER, _HIT = attrgetter("number"), attrgetter("hit")
_BOOKS = [(name, attrgetter(name)) for name in ATTRIBUTES["books"]]


@define(eq=False)
class EngineViews:
    """`views` of all engines, by the signals that a router goes by.

    Engines note facts with their times.  At each choice, `books`, `scrapes` and `indexes`, one for each size of block,
    read those that have arrived.  So no signal needs an event of SimPy.
    """

    views: Sequence[View]
    router: Any
    signals: tuple[str, ...]
    #: Whether routers choose by metrics, and not only whoever asks for `all_of_them`.
    by_metrics: bool = True
    books: Books | None = None
    scrapes: "Scrapes | None" = None
    indexes: "Sequence[KvIndex | SharedTier]" = field(factory=tuple)

    @classmethod
    def of(cls, engines: Sequence[Any], router: Any, settings: SignalSettings, seed: int, key: str) -> "EngineViews":
        """The views of *engines*, which have not begun, for *router*, which is the scenario's *key*."""
        signals = signals_of(router, key)
        views = [view_class(signals).of(engine) for engine in engines]
        seen = [view for view in views if signals and isinstance(view.engine, Engine)]
        answers: list[Answer] = []
        late = late_events(signals, settings)
        observers = [_observer(view, signals, settings, answers, late) for view in seen]
        books = Books.of({view.number: view for view in seen}, answers, router) if "books" in signals else None
        scrapes, indexes = _late(seen, observers, signals, settings, seed)
        if "kv_events" in signals and not late:
            for view in seen:
                view.find_hit, view.find_tiers = view.engine.prefix_hit, view.engine.tier_hits
        by_metrics = "metrics" in getattr(router, "chosen_by", signals)
        return cls(views, router, signals, by_metrics, books, scrapes, indexes)

    def look(self, request: Request, now: float) -> None:
        """Bring the views up to *now*, when an engine is chosen for *request*."""
        self.refresh(now)
        if self.books is not None:
            self.books.routed(request)

    def refresh(self, now: float, all_of_them: bool = False) -> None:
        """Bring the views up to *now*: what routers choose by, or *all_of_them*."""
        if self.books is not None:  # answers are of turns that no engine puts off
            self.books.look(now)
        if self.scrapes is not None and (self.by_metrics or all_of_them):
            self.scrapes.look(now)
        if "kv_events" in self.signals or "truth" in self.signals:
            for view in self.views:
                view.hit = -1
                if isinstance(view.engine, Engine):
                    view.engine.catch_up(now)
        for index in self.indexes:
            index.look(now)

    @property
    def complete(self) -> bool:
        """Whether these engines can serve a request, alone or together."""
        roles = {view.role for view in self.views}
        return "both" in roles or {"prefill", "decode"} <= roles

    @property
    def tells(self) -> bool:
        """Whether to log what the router sees: there is a choice, and it looks."""
        return len(self.views) > 1 and bool(self.signals)

    def seen(self, candidates: Sequence[View]) -> Seen:
        """The attributes of *candidates* that the router saw when it chose, and its scores."""
        scores = getattr(self.router, "scores", None)
        return Seen(
            array("i", [*map(_NUMBER, candidates)]),
            {name: array("q", [*map(read, candidates)]) for name, read in _BOOKS} if self.books else {},
            self._metrics(candidates) if self.scrapes and self.by_metrics else {},
            array("i", [*map(_HIT, candidates)]) if "kv_events" in self.signals else None,
            None if scores is None else array("d", scores))

    def _metrics(self, candidates: Sequence[View]) -> Mapping[str, Sequence[float]]:
        """The metrics of *candidates*, in their order."""
        assert self.scrapes is not None, "only a router that goes by metrics has seen some"
        shown = self.scrapes.shown
        if candidates is self.views and len(candidates) == len(self.scrapes.views):
            return shown
        places = {view.number: index for index, view in enumerate(self.scrapes.views)}
        return {name: [column[places[view.number]] for view in candidates] for name, column in shown.items()}


def _late(views: Sequence[View], observers: Sequence[Observer], signals: tuple[str, ...], settings: SignalSettings,
          seed: int) -> "tuple[Scrapes | None, Sequence[KvIndex | SharedTier]]":
    """The signals of *views* that arrive late: metrics and KV events."""
    late = late_events(signals, settings)
    if not late and "metrics" not in signals:
        return None, ()
    from ksim.cluster.signals.kv_index import Scrapes, indexes_of  # for routers that go by them alone

    scrapes = Scrapes(settings, views, observers, seed) if "metrics" in signals else None
    return scrapes, indexes_of(views, observers, settings, seed) if late else ()


def _observer(view: View, signals: tuple[str, ...], settings: SignalSettings, answers: list[Answer],
              late: bool) -> Observer:
    """Have the engine of *view* observed."""
    cache = view.engine.scheduler.cache
    observer = Observer(view.number, answers if "books" in signals else None,
                        settings.scrape_interval if "metrics" in signals else None,
                        cache.tree.tells if late else None)
    view.engine.show(observer)
    return observer
