"""To the engine that would finish the request first, by the engines' true state: a bound for what signals could tell.

It knows all and plans nothing: it minimises the latency of the request at hand, and not what that costs others.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import in_

from ksim.cluster.forecast import forecast
from ksim.cluster.routers import V
from ksim.cluster.step_model import StepModel, models_of
from ksim.flow.request import Request

__all__ = ["Omniscient"]


@define
class Omniscient:
    """For each engine, plays its next turns with the request in its queue, at the step times of its own timers
    (ksim/cluster/forecast.py), and takes the engine on which the last token comes first; of equals, the one with the
    fewest unfinished requests, then the first.

    It knows what each cache has now, tiers included, what is in the queue and in flight, how many tokens each running
    request will still get, and how long this one's output is.  With `minimise` "ttft", the first token counts alone.
    It is greedy: other requests, and those that come later, have no weight.
    """

    source: ClassVar[str] = "ksim; greedy on the true state, no real router can be it"
    signals: ClassVar[tuple[str, ...]] = ("books", "truth")
    minimise: str = field(default="finish", validator=in_(("finish", "ttft")))
    scores: Sequence[float] = field(default=(), init=False)
    _models: dict[int, StepModel] = field(factory=dict, init=False)
    _hits: dict[int, dict[int, int]] = field(factory=dict, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        if len(self._models) < len(engines):
            self._models = models_of([engine.truth for engine in engines])
        hits = [_hit(engine.truth, request) for engine in engines]
        whens = [self._when(engine, request, hit, now) for engine, hit in zip(engines, hits, strict=True)]
        self.scores = [now - when for when in whens]
        best = min(range(len(engines)), key=lambda place: (whens[place], engines[place].outstanding))
        self._hits[engines[best].number][request.id] = hits[best]
        return engines[best]

    def on_first_token(self, request: Request, engine_number: int, now: float) -> None:
        """Forget what was cached of a prompt that is computed."""
        self._hits.get(engine_number, {}).pop(request.id, None)

    def _when(self, engine: V, request: Request, hit: int, now: float) -> float:
        """When *request* would have what counts from *engine*, whose cache has *hit* tokens of it."""
        known = self._hits.setdefault(engine.number, {})
        seen = forecast(engine.truth, request, self._models[engine.number], {**known, request.id: hit}, now)
        return seen.first if self.minimise == "ttft" else seen.last


def _hit(engine: Any, request: Request) -> int:
    """The tokens of *request*'s prompt that *engine* need not compute: in its cache, and in the tiers behind it."""
    tiers = getattr(engine, "tier_hits", None)
    return int(engine.prefix_hit(request)) + (sum(tiers(request).values()) if tiers else 0)
