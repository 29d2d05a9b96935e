"""To the engine that had the session's turns before; another router chooses for all others."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field

from ksim.cluster.routers import V
from ksim.cluster.signals import signals_of
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice

__all__ = ["SessionAffinity"]


@define
class SessionAffinity:
    """`fallback` names the router for a session's first turn, and for requests without a session.

    A session stays where its first turn went, however long it pauses and however busy the engine is.  If that engine
    is not among those to choose from, the fallback chooses again.
    """

    source: ClassVar[str] = "llm-d-router session-affinity-scorer; SGLang sgl-model-gateway, policies/manual.rs"
    fallback: Choice = field(factory=lambda: Choice("least_outstanding"))
    on_first_token: Any = field(init=False)
    on_end: Any = field(init=False)
    on_gone: Any = field(init=False)
    _router: Any = field(init=False)
    _homes: dict[str, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._router = plugin("cluster.routers", self.fallback)
        self.on_first_token = getattr(self._router, "on_first_token", None)
        self.on_end = getattr(self._router, "on_end", None)
        self.on_gone = getattr(self._router, "on_gone", None)

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of the fallback."""
        return signals_of(self._router)

    @property
    def refusal(self) -> str | None:
        """Why the fallback refuses a request; None if it never does."""
        refusal: str | None = getattr(self._router, "refusal", None)
        return refusal

    def measured(self, models: Any) -> None:
        """Tell the fallback, if it wants to know."""
        if getattr(self._router, "measured", None):
            self._router.measured(models)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V | None:
        home = self._homes.get(request.session) if request.session else None
        for engine in engines if home is not None else ():
            if engine.number == home:
                return engine
        chosen: V | None = self._router.choose(request, engines, now)
        if request.session and chosen is not None:
            self._homes[request.session] = chosen.number
        return chosen
