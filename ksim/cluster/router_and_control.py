"""A router and a flow control before it, which share one sight of the engines."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from ksim.cluster.signals import signals_of

__all__ = ["RouterAndControl"]


@frozen
class RouterAndControl:
    """Goes by the signals of either, and tells both of answers; each may read what the other has named."""

    router: Any
    control: Any
    key: str

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of either, in their usual order."""
        own = signals_of(self.router, self.key)
        return (*own, *(signal for signal in signals_of(self.control, "flow_control") if signal not in own))

    @property
    def scores(self) -> Any:
        """The router's scores, if it has any."""
        return getattr(self.router, "scores", None)

    @property
    def on_first_token(self) -> Callable[..., object] | None:
        return self._teller("on_first_token")

    @property
    def on_end(self) -> Callable[..., object] | None:
        return self._teller("on_end")

    def _teller(self, method: str) -> Callable[..., object] | None:
        """What calls the *method* of those that have it; None if neither does."""
        told = [getattr(part, method) for part in (self.router, self.control) if getattr(part, method, None)]
        if not told:
            return None

        def tell(*args: Any) -> None:
            for call in told:
                call(*args)

        return tell
