"""How a request enters an engine: whole, as several sequences, or as a beam search."""

from collections.abc import Callable

from ksim.engine.beam_search import BeamSearch
from ksim.engine.engine import Engine
from ksim.engine.parent_request import ParentRequest
from ksim.flow.request import Request

__all__ = ["submit"]


def submit(engine: Engine, request: Request, done: Callable[[], object], timely: bool) -> None:
    """Have *engine* serve *request*; *done* is called at the end of all its sequences."""
    if request.beam_width:
        BeamSearch.of(request, engine, done)
    elif request.n == 1:
        engine.submit(request, done, timely)
    else:
        parent = ParentRequest(request.n, done)
        for child in request.children():  # one after the other, as vLLM's front end sends them
            engine.submit(child, parent, timely)
