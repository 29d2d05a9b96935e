"""To the one with fewer unfinished requests of two engines drawn at random."""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import ge

from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["PowerOfTwo"]


@define
class PowerOfTwo:
    """Draws two different engines by `seed`; the first drawn has the request if both have as many.

    SGLang's gateway compares the tokens in use that its load monitor has for both workers, and without these the
    requests that it has in flight there; here it is the requests.
    """

    source: ClassVar[str] = "SGLang sgl-model-gateway, policies/power_of_two.rs; Mitzenmacher 2001"
    signals: ClassVar[tuple[str, ...]] = ("books",)
    seed: int = field(default=0, validator=ge(0))
    _random: Any = field(default=None, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        count = len(engines)
        if count == 1:
            return engines[0]
        if self._random is None:
            self._random = stream(self.seed, "power_of_two")
        drawn = int(self._random.integers(count * (count - 1)))
        place, ahead = drawn // (count - 1), drawn % (count - 1)
        first, second = engines[place], engines[(place + 1 + ahead) % count]
        return first if first.outstanding <= second.outstanding else second
