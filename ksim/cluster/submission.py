"""How a request enters an engine, whole, as several sequences, or as a beam search; and leaves it before its end."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ksim.engine.beam_search import BeamSearch
from ksim.engine.engine import Engine
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.engine.parent_request import ParentRequest
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.cluster.cluster import Cluster

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


def hang_up(cluster: "Cluster", request: Request, done: Callable[[], object]) -> None:
    """Have *cluster* abort *request*, which is sent now, when its client hangs up; *done* is called if that ends it.

    Raises KsimError where an engine goes ahead of the clock: it would have taken steps after that moment before.
    """
    if any(isinstance(engine, LookaheadEngine) for engine in cluster.engines):
        raise KsimError(f"request {request.id} is aborted after {request.aborted:g} s, and an engine goes ahead of the"
                        " clock; play such requests with fleet.stepping()")

    def leave() -> None:
        if cluster.abort(request.id):
            done()

    cluster.env.call_at(cluster.env.now + (request.aborted or 0.0), leave)
