"""Routers: which engine serves a request.

To add one, add a file with an attrs class that has `choose`.  It sees engines
as `EngineView`, and answers with one of those it was given.

One that goes by the requests alone, and of engines reads no more than their
`number`, may say so by a class attribute, ``blind: ClassVar[bool] = True``:
`ksim run --jobs` can then run replicas in processes of their own.  Each of
them asks a router of its own about every request, in their order, so equal
questions must have equal answers.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ksim.flow.request import Request


class EngineView(Protocol):
    """What a router may know of an engine."""

    @property
    def number(self) -> int: ...

    @property
    def outstanding(self) -> int:
        """Requests given to it that are not finished."""
        ...

    def prefix_hit(self, request: Request) -> int:
        """How many tokens of the request's prompt are in its prefix cache now."""
        ...

    def adapter_place(self, name: str) -> str:
        """Where it has the LoRA adapter *name* now: "gpu", "memory", "disk", or "" if it does not know it."""
        ...


V = TypeVar("V", bound=EngineView)


class Router(Protocol):
    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        """The engine for *request*, which is among *engines*."""
        ...
