"""How a request enters an engine, whole, as several sequences, or as a beam search; and leaves it before its end."""

from collections.abc import Callable, Iterable

from ksim.engine.beam_search import BeamSearch
from ksim.engine.engine import Engine
from ksim.engine.horizon import Horizon
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.engine.parent_request import ParentRequest
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError

__all__ = ["hang_up", "submit"]


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


def hang_up(request: Request, engines: Iterable[object], env: Horizon, leave: Callable[[], None]) -> None:
    """Have *request*, which is sent now to one of *engines*, *leave* when its client hangs up.

    Raises KsimError where an engine goes ahead of the clock: it would have taken steps beyond that moment.
    """
    assert request.aborted is not None, "its client hangs up"
    if any(isinstance(engine, LookaheadEngine) for engine in engines):
        raise KsimError(f"request {request.id} is aborted after {request.aborted:g} s, and an engine goes ahead of the"
                        " clock; play such requests with fleet.stepping()")
    env.call_at(env.now + request.aborted, leave)
