"""Each side by a router of its own, as vLLM's example proxies do; every request is split."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from ksim.cluster.pair_routers import V
from ksim.flow.request import Request
from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin

__all__ = ["EachSide"]


@define
class EachSide:
    """`prefill` and `decode` name routers.

    vLLM's examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py and toy_proxy_server.py take the engines
    of each side in turn, which is the default.
    """

    prefill: Choice = field(factory=lambda: Choice("round_robin"))
    decode: Choice = field(factory=lambda: Choice("round_robin"))
    _sides: tuple[Any, Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sides = plugin("cluster.routers", self.prefill), plugin("cluster.routers", self.decode)

    @property
    def blind(self) -> bool:
        """Whether neither router looks at engines."""
        return all(getattr(side, "blind", False) for side in self._sides)

    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V]:
        prefill, decode = self._sides
        return prefill.choose(request, prefill_engines, now), decode.choose(request, decode_engines, now)
