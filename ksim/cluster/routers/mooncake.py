"""Mooncake's scheduler: the least of transfer, queue and prefill time, with early rejection."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt, optional

from ksim.cluster.forecast import PrefillQueues, StepModel
from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.units import Seconds, optional_quantity

__all__ = ["Mooncake"]


def _target() -> Seconds | None:
    limit: Seconds | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    return limit


@define
class Mooncake:
    """Algorithm 1 of the paper for engines that prefill and decode, so that the engine chosen for one has both.

    An engine's time to the first token is its queue of prefills and the prefill of what it lacks.  If the longest
    cached beginning anywhere is at least `kvcache_balancing_threshold` times as long as its own, it is instead the
    transfer of the difference, at `transfer_rate` tokens a second, the queue, and the prefill without either.  The
    least wins, the first of equals.  Without a `transfer_rate`, no engine counts on what only others have: engines
    do not send each other KV unless they share a store, and a store's tokens count as the engine's own.

    Estimates: prefill and step times are those of a model fitted offline (ksim/cluster/forecast.py), where Mooncake
    fits one to measurements; a queue is the sum of the prefills sent and without a first token; the time between
    tokens is a step with one more sequence than the last scrape reports, and as much KV as it reports.

    A request is refused with status 429 if its estimates break `ttft_slo` or `tbt_slo`.
    """

    source: ClassVar[str] = "Mooncake, arXiv 2407.00079 (FAST 25), Algorithm 1 and section 7"
    signals: ClassVar[tuple[str, ...]] = ("books", "metrics", "kv_events")
    ttft_slo: Seconds | None = _target()
    tbt_slo: Seconds | None = _target()
    kvcache_balancing_threshold: float = field(default=1.0, validator=ge(1))
    transfer_rate: float | None = field(default=None, validator=optional(gt(0)))
    scores: Sequence[float] = field(default=(), init=False)
    refusal: str = field(default="", init=False)
    _queues: PrefillQueues = field(factory=PrefillQueues, init=False)

    def measured(self, models: Mapping[int, StepModel]) -> None:
        """Take the step *models* of the engines, by their numbers."""
        self._queues = PrefillQueues(models)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V | None:
        lengths = [_cached(engine, request) for engine in engines]
        longest, queues = max(lengths), self._queues
        alike: dict[tuple[int, int], tuple[float, float]] = {}  # engines of a model with as much cached
        parts, waits = [], []
        for engine, own in zip(engines, lengths, strict=True):
            if not engine.outstanding:
                queues.clear(engine.number)
            key = id(queues.models[engine.number]), own
            part = alike.get(key) or alike.setdefault(key, self._computed(engine.number, request.prompt, own, longest))
            parts.append(part)
            waits.append(part[0] + queues.queue(engine.number) + part[1])
        self.scores = [-wait for wait in waits]
        best = waits.index(min(waits))
        self.refusal = self._refusal(waits[best], self._step(engines[best], request))
        if self.refusal:
            return None
        queues.add(engines[best].number, request.id, parts[best][1])
        return engines[best]

    def on_first_token(self, request: Request, engine_number: int, now: float) -> None:
        self._queues.remove(engine_number, request.id)

    on_end = on_first_token

    def _computed(self, number: int, prompt: int, own: int, longest: int) -> tuple[float, float]:
        """The seconds of transfer and prefill on engine *number*, which has *own* tokens where one has the *longest*.
        """
        if self.transfer_rate is None or longest <= own or longest < self.kvcache_balancing_threshold * own:
            return 0.0, self._queues.prefill(number, prompt, own)
        return (longest - own) / self.transfer_rate, self._queues.prefill(number, prompt, longest)

    def _step(self, engine: V, request: Request) -> float:
        """The time between tokens on *engine* with *request*."""
        if self.tbt_slo is None:
            return 0.0
        cached = round(engine.kv_usage * engine.kv_blocks * engine.block_tokens) + request.prompt
        return max(self._queues.models[engine.number].seconds(0, 0, engine.running + 1, cached))

    def _refusal(self, wait: float, step: float) -> str:
        """Why a request is refused that gets its first token after *wait*, and then one each *step*; "" if not."""
        for name, estimate, most in (("TTFT", wait, self.ttft_slo), ("TBT", step, self.tbt_slo)):
            if most is not None and estimate > most:
                return f"its estimated {name} of {estimate:.3g} s breaks the target of {most:g} s"
        return ""


def _cached(engine: V, request: Request) -> int:
    """The tokens of *request*'s prompt that *engine* need not compute."""
    tiers = engine.tier_hits(request)
    return engine.prefix_hit(request) + (sum(tiers.values()) if tiers else 0)
