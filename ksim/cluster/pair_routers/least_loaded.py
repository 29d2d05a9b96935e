"""To the prefill and the decode engine with the fewest requests that are not finished; the first of equals."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from ksim.cluster.pair_routers import V
from ksim.flow.request import Request

__all__ = ["LeastLoaded"]


@frozen
class LeastLoaded:
    """Compares the prefill engine with a decode engine of role both, and does not split where that one has less to do.

    Each side's least loaded engine makes the least loaded pair, as the load of a pair is a sum.
    """

    signals: ClassVar[tuple[str, ...]] = ("books",)
    source: ClassVar[str] = "ksim"

    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V]:
        prefill, decode = (min(engines, key=lambda engine: engine.outstanding)
                           for engines in (prefill_engines, decode_engines))
        alone = decode.role == "both" and decode.outstanding < prefill.outstanding
        return (None if alone else prefill), decode
