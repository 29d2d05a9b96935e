"""Each side by a router of its own, as vLLM's example proxies do; every request is split."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from attrs import define, field

from ksim.cluster.pair_routers import V
from ksim.cluster.signals import signals_of, together
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice

__all__ = ["EachSide"]


@define
class EachSide:
    """`prefill` and `decode` name routers.

    vLLM's examples/disaggregated/disaggregated_serving/disagg_proxy_demo.py and toy_proxy_server.py take the engines
    of each side in turn, which is the default.
    """

    source: ClassVar[str] = "vLLM, examples/disaggregated/disaggregated_serving"

    prefill: Choice = field(factory=lambda: Choice("round_robin"))
    decode: Choice = field(factory=lambda: Choice("round_robin"))
    on_first_token: Any = field(init=False)
    on_end: Any = field(init=False)
    on_gone: Any = field(init=False)
    refusal: str | None = field(default=None, init=False)
    _sides: tuple[Any, Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sides = plugin("cluster.routers", self.prefill), plugin("cluster.routers", self.decode)
        self.on_first_token, self.on_end, self.on_gone = (
            together(self._sides, method) for method in ("on_first_token", "on_end", "on_gone"))
        if any(getattr(side, "refusal", None) is not None for side in self._sides):
            self.refusal = ""

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of both routers."""
        return tuple(dict.fromkeys(signal for side in self._sides for signal in signals_of(side)))

    @property
    def scores(self) -> Sequence[float] | None:
        """The scores of both routers' engines, if they have any."""
        prefill, decode = (getattr(side, "scores", None) for side in self._sides)
        return None if prefill is None or decode is None else [*prefill, *decode]

    @property
    def measured(self) -> Callable[[Any], None] | None:
        """Tells the routers that want to know it how long steps take; None where neither does."""
        asking = [side.measured for side in self._sides if getattr(side, "measured", None)]
        if not asking:
            return None

        def tell(models: Any) -> None:
            for measured in asking:
                measured(models)

        return tell

    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V | None]:
        """An engine of each side, or none: a request that either router refuses is refused."""
        prefill = self._choose(0, request, prefill_engines, now)
        decode = None if prefill is None else self._choose(1, request, decode_engines, now)
        if prefill is None or decode is not None:
            return prefill, decode
        if getattr(self._sides[0], "on_end", None):
            self._sides[0].on_end(request, prefill.number, now)
        return None, None

    def _choose(self, side: int, request: Request, engines: Sequence[V], now: float) -> V | None:
        router = self._sides[side]
        chosen: V | None = router.choose(request, engines, now)
        if chosen is None:
            self.refusal = getattr(router, "refusal", None)
        return chosen
