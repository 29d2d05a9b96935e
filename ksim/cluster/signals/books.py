"""A router's own books: what it has sent to engines, and which answers have passed through it."""

from collections.abc import Callable, Mapping
from heapq import heappop
from typing import Any

from attrs import define, field

from ksim.cluster.signals.view import View
from ksim.engine.observer import ENDED, FIRST_TOKEN, RESOLUTION, SENT, Answer
from ksim.flow.request import Request

__all__ = ["Books"]

#: A sequence on an engine: the engine's number, its request's, and its own.
_Sequence = tuple[int, int, int]


@define(eq=False)
class Books:
    """Counts in `views`, by the numbers of engines, what is under way, and tells `router` of answers if it asks.

    `answers` is a heap of what engines have told so far, and may lie ahead.
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
        """Keep *request*, which the router has been asked about, to tell it of its answers."""
        if self._on_first_token or self._on_end:
            self._requests[request.id] = request

    def look(self, now: float) -> None:
        """Take in all answers up to *now*."""
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
            self._tell_of_first_token(answer)
            return
        view.outstanding -= 1
        view.outstanding_tokens -= request.prompt
        if answer.over:
            self._tell_of_end(answer)

    def _tell_of_first_token(self, answer: Answer) -> None:
        """Tell of the first of a request's sequences that has a token."""
        begun = answer.engine, answer.request.id
        if self._on_first_token and begun not in self._begun and answer.request.id in self._requests:
            self._begun.add(begun)
            self._on_first_token(self._requests[answer.request.id], answer.engine, answer.time)

    def _tell_of_end(self, answer: Answer) -> None:
        """Tell of the end of a request on an engine; the one that only prefilled it is not the last."""
        assert answer.kind == ENDED, "what has ended had been sent"
        self._begun.discard((answer.engine, answer.request.id))
        last = self.views[answer.engine].role != "prefill"
        request = self._requests.pop(answer.request.id, None) if last else self._requests.get(answer.request.id)
        if self._on_end and request is not None:
            self._on_end(request, answer.engine, answer.time)
