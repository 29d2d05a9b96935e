"""To the engine where a request costs all requests least, by the engines' true state: the yardstick of other routers.

It knows all that is there, and nothing of what is to come but how much of it comes.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from attrs import define, field
from attrs.validators import in_

from ksim.cluster.forecast import Forecast, StepModel, forecast, models_of
from ksim.cluster.routers import V
from ksim.engine.observer import RESOLUTION
from ksim.flow.request import BlockKeys, Request

__all__ = ["Omniscient"]

#: The largest share of time in which engines are taken to prefill: waits grow without bound towards 1.
_BUSIEST = 0.95


@define
class _Traffic:
    """The requests sent since the first one: their number, and their seconds of prefill."""

    since: float = inf
    requests: int = 0
    prefills: float = 0.0

    def waits(self, prefill: float, backlog: float, engines: int, now: float) -> float:
        """Seconds by which a *prefill* after a *backlog* of others delays all later requests, in all.

        They come to each of so many *engines* as a Poisson stream, as in M/G/1-FCFS.
        """
        spent = max(now - self.since, 1.0) * engines
        busy = min(self.prefills / spent, _BUSIEST)
        return self.requests / spent * prefill * (2 * backlog + prefill) / (2 * (1 - busy))

    def add(self, prefill: float, now: float) -> None:
        self.since = min(self.since, now)
        self.requests += 1
        self.prefills += prefill


@define
class _Sent:
    """A request without a first token: how much of it was cached, and the keys of its blocks."""

    hit: int
    keys: set[int]


@define
class Omniscient:
    """Takes the engine with the least sum of three times:

    * the request's own, to its last token;
    * by how much it delays those on the engine: its prefill all that are there, its decode those that decode beside it;
    * by how much its prefill delays those that come later, as long as the queue lasts in which it stands.

    For the first two it plays each engine's next turns, at the step times of its own timers (ksim/cluster/forecast.py).
    The third is what an arrival costs in an M/G/1 queue of prefills, at the rate and load so far.  It knows what each
    cache has, tiers included, or will have of what stands in the queue, how many tokens each running request will
    still get, and how long this one's output is.  Of equals, the engine with the fewest unfinished requests wins, then
    the first.

    With `minimise` "ttft" or "finish" it is selfish: the request's own first or last token counts alone.
    """

    source: ClassVar[str] = "ksim, on the true state; later arrivals: Hyytiä et al., EJOR 217 (2012) 357"
    signals: ClassVar[tuple[str, ...]] = ("books", "truth")
    minimise: str = field(default="total", validator=in_(("total", "finish", "ttft")))
    scores: Sequence[float] = field(default=(), init=False)
    _models: dict[int, StepModel] = field(factory=dict, init=False)
    _sent: dict[int, dict[int, _Sent]] = field(factory=dict, init=False)
    _traffic: _Traffic = field(factory=_Traffic, init=False)
    _keys: BlockKeys | None = field(default=None, init=False)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V:
        if len(self._models) < len(engines):
            self._models = models_of([engine.truth for engine in engines])
        keys = self._named(request, engines[0].truth.scheduler.cache.block_tokens)
        hits = [max(_hit(engine.truth, request), self._coming(engine.number, keys)) for engine in engines]
        costs = [self._cost(engine, request, hit, now, len(engines)) for engine, hit in zip(engines, hits, strict=True)]
        self.scores = [-cost for cost in costs]
        least = min(costs) + RESOLUTION  # the same sum in another order is no other cost
        best = min((place for place, cost in enumerate(costs) if cost <= least),
                   key=lambda place: engines[place].outstanding)
        number = engines[best].number
        self._sent[number][request.id] = _Sent(hits[best], {*keys})
        self._traffic.add(self._prefill(number, request, hits[best]), now)
        return engines[best]

    def on_first_token(self, request: Request, engine_number: int, now: float) -> None:
        """Forget what was cached of a prompt that is computed."""
        self._sent.get(engine_number, {}).pop(request.id, None)

    def _cost(self, engine: V, request: Request, hit: int, now: float, engines: int) -> float:
        """The cost in seconds, by `minimise`, of sending *request* to *engine*, which has *hit* tokens of it."""
        known: Mapping[int, int] = {key: sent.hit for key, sent in self._sent.setdefault(engine.number, {}).items()}
        model = self._models[engine.number]
        seen: Forecast = forecast(engine.truth, request, model, {**known, request.id: hit}, now)
        if self.minimise == "ttft":
            return seen.first - now
        if self.minimise == "finish":
            return seen.last - now
        prefill = self._prefill(engine.number, request, hit)
        backlog = max(seen.first - now - prefill, 0.0)
        return seen.last - now + seen.delays + self._traffic.waits(prefill, backlog, engines, now)

    def _prefill(self, number: int, request: Request, hit: int) -> float:
        """The seconds in which engine *number* computes what it lacks of the prompt."""
        hit = min(hit, request.prompt - 1)
        return self._models[number].prefill(request.prompt - hit, hit)

    def _named(self, request: Request, block_tokens: int) -> list[int]:
        """The keys of the prompt's blocks that others may have, too."""
        if self._keys is None:
            self._keys = BlockKeys(block_tokens)
        return self._keys.of(request)[:request.prompt // self._keys.block_tokens]

    def _coming(self, number: int, keys: Sequence[int]) -> int:
        """The tokens of a prompt's *keys* that engine *number* computes for others before it."""
        shared = (bisect_left(keys, True, key=lambda key: key not in sent.keys)
                  for sent in self._sent.get(number, {}).values())
        return max(shared, default=0) * (self._keys.block_tokens if self._keys else 0)


def _hit(engine: Any, request: Request) -> int:
    """The tokens of *request*'s prompt that *engine* need not compute: in its cache, and in the tiers behind it."""
    tiers = getattr(engine, "tier_hits", None)
    return int(engine.prefix_hit(request)) + (sum(tiers(request).values()) if tiers else 0)
