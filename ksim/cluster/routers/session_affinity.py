"""To the engine that had the session's turns before; another router chooses for all others."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field

from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin

__all__ = ["SessionAffinity"]


@define
class SessionAffinity:
    """`fallback` names the router for a session's first turn, and for requests without a session.

    A session stays where its first turn went, however long it pauses and however busy the engine is.  If that engine
    is not among those to choose from, the fallback chooses again.
    """

    source: ClassVar[str] = "llm-d-router session-affinity-scorer; SGLang sgl-model-gateway, policies/manual.rs"
    fallback: Choice = field(factory=lambda: Choice("least_outstanding"))
    _router: Any = field(init=False)
    _homes: dict[str, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._router = plugin("cluster.routers", self.fallback)

    @property
    def signals(self) -> tuple[str, ...]:
        """What the fallback needs."""
        needed: tuple[str, ...] = getattr(self._router, "signals", ("books", "metrics", "kv_events"))
        return needed

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        home = self._homes.get(request.session) if request.session else None
        for engine in engines if home is not None else ():
            if engine.number == home:
                return engine
        chosen: V = self._router.choose(request, engines, now)
        if request.session and chosen is not None:
            self._homes[request.session] = chosen.number
        return chosen

    def on_first_token(self, request: Request, engine_number: int, now: float) -> None:
        _tell(self._router, "on_first_token", (request, engine_number, now))

    def on_end(self, request: Request, engine_number: int, now: float) -> None:
        _tell(self._router, "on_end", (request, engine_number, now))

    def measured(self, models: Any) -> None:
        _tell(self._router, "measured", (models,))


def _tell(router: Any, method: str, told: tuple[Any, ...]) -> None:
    """Call the *method* of *router*, if it has it."""
    if hasattr(router, method):
        getattr(router, method)(*told)
