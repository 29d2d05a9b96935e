"""Pair routers: which engine prefills a request, and which decodes it.

To add one, add a file with an attrs class that has `choose`.  It sees engines
as routers do, as `EngineView`, and answers with two of those it was given.

A decode engine of role both can prefill alone: then the answer may have None
in place of a prefill engine, and the request is not split.  One of role
decode cannot, and its requests are always split.  An answer of two Nones
refuses the request; a pair router that does that has an attribute `refusal`,
which says why.

It says what it goes by as routers do (ksim/cluster/routers), by `signals` and
`source`, and may have `on_first_token`, `on_end` and `scores`.  These have
first the scores of the prefill engines, then those of the decode engines.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

PairView = EngineView
V = TypeVar("V", bound=EngineView)


class PairRouter(Protocol):
    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V | None]:
        """The engine that prefills *request*, or None if the one that decodes it does, and that one."""
        ...
