"""Pair routers: which engine prefills a request, and which decodes it.

To add one, add a file with an attrs class that has `choose`.  It sees engines
as routers do, as `EngineView`, and answers with two of those it was given.

A decode engine of role both can prefill alone: then the answer may have None
in place of a prefill engine, and the request is not split.  One of role
decode cannot, and its requests are always split.

Blind pair routers say so as blind routers do (ksim/cluster/routers): a class
attribute ``blind: ClassVar[bool] = True``.  Nothing that they look at but
`number` and `role` may decide, so engines need not be at rest to be chosen.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ksim.cluster.routers import EngineView
from ksim.flow.request import Request


class PairView(EngineView, Protocol):
    """What a pair router may know of an engine."""

    @property
    def role(self) -> str:
        """What its pool is for: prefill, decode or both."""
        ...

    @property
    def waiting(self) -> int:
        """How many requests are in its queue."""
        ...


V = TypeVar("V", bound=PairView)


class PairRouter(Protocol):
    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V]:
        """The engine that prefills *request*, or None if the one that decodes it does, and that one."""
        ...
