"""Fixed batches of equal requests: what their prompts, and a step in which all of them decode, take in joules."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from attrs import evolve, field, frozen

from ksim.cost.clock import Clock
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import StepCost
from ksim.simulation.assembly import Site
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.sizing import Memory, activations, memory

#: What the paper measured on.
_PAPERS = {"gpu": "a100-80g", "engine": "trtllm-1.0", "host": "trtllm", "workload": ANY_WORKLOAD}


@frozen
class Point:
    """A step of `batch` equal requests of a `phase`: prompts of `length` tokens, or decodes with as many in the cache.

    `joules` are of all `gpus`, with their idle power for the step's `seconds`.  Collectives take the shares
    `exchanging` of the seconds and `exchanged` of the joules.  `variant` is how its bench differs from others.
    """

    phase: str
    gpus: int
    batch: int
    length: int
    seconds: float
    joules: float
    exchanging: float = 0.0
    exchanged: float = 0.0
    variant: str = ""

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return self.batch * self.length if self.phase == "prefill" else self.batch

    @property
    def joules_per_token(self) -> float:
        return self.joules / self.tokens

    @property
    def watts(self) -> float:
        """Of one GPU, on average."""
        return self.joules / self.seconds / self.gpus

    @property
    def exchange_watts(self) -> float:
        """Of one GPU while it is in a collective; 0 where there is none."""
        return self.exchanged * self.watts / self.exchanging if self.exchanging else 0.0


@frozen
class Bench:
    """A model on some GPUs, whose batches can be priced."""

    site: Site
    variant: str
    _timer: StepTimer = field(repr=False)
    _memory: Memory = field(repr=False)

    @classmethod
    def of(cls, model: str, tensor: int, variant: str = "", **serve: Any) -> "Bench":
        """*model* on *tensor* A100 under TensorRT-LLM, with further settings of `serve`; raises KsimError."""
        settings = {"tensor_parallel_size": tensor, **serve}
        site = Site.of(Scenario.of({**_PAPERS, "model": model, "serve": settings}, model))
        part = memory(site.model, site.shards[0], site.gpu, site.scenario.serve)
        return cls(site, variant, site.timers()[0], part)

    @property
    def gpus(self) -> int:
        return self.site.scenario.serve.gpus

    @property
    def limit(self) -> float:
        """The power limit of one GPU, in watts."""
        return self.site.gpu.power.limit

    def prefill(self, batch: int, length: int) -> Point:
        """All prompts in one step."""
        return self._point("prefill", batch, length, Batch.of(*[(length, 0)] * batch))

    def decode(self, batch: int, length: int) -> Point:
        return self._point("decode", batch, length, Batch.of(*[(1, length)] * batch))

    def holds(self, batch: int, length: int, at_once: int | None = None) -> bool:
        """Whether *batch* requests of *length* tokens fit in memory, where *at_once* tokens go through a step.

        By default, as many as the engine lets through.
        """
        part, shard = self._memory, self.site.shards[0]
        if at_once is not None:
            part = evolve(part, activations=activations(self.site.model, at_once, batch, shard))
        return part.blocks(1) >= batch * length

    def prefills(self, batches: Iterable[int], lengths: Iterable[int]) -> Iterator[Point]:
        """Those that fit, in order of batch and length."""
        lengths = tuple(lengths)
        yield from (self.prefill(batch, length) for batch in batches for length in lengths
                    if self.holds(batch, length, at_once=batch * length))

    def decodes(self, batches: Iterable[int], lengths: Iterable[int]) -> Iterator[Point]:
        """Those that fit, in order of batch and length."""
        lengths = tuple(lengths)
        yield from (self.decode(batch, length) for batch in batches for length in lengths if self.holds(batch, length))

    def _point(self, phase: str, batch: int, length: int, step: Batch) -> Point:
        timeline, power = self._timer.step_cost(step), self.site.gpu.power
        pace = Clock(power, power.clocks).pace(timeline, 0.0) if power.clocks else AT_BOOST
        seconds = max(timeline.seconds_at(pace), timeline.launch_seconds)
        joules = timeline.joules_at(pace) + power.idle * seconds
        exchanging, exchanged = _collectives(timeline, pace, power.idle)
        return Point(phase, self.gpus, batch, length, seconds, self.gpus * joules, exchanging / seconds,
                     exchanged / joules, self.variant)


def _collectives(timeline: StepCost, pace: ClockScaling, idle: float) -> tuple[float, float]:
    """Seconds and joules of one GPU in collectives."""
    runs = [(span, count) for span, count in timeline.counted() if span.bound == "communication"]
    seconds = sum(count * span.seconds for span, count in runs)
    drawn = sum(count * span.joules_at(pace) for span, count in runs)
    return seconds, drawn + idle * seconds


def spread(points: Iterable[Point]) -> float:
    """How many times the least energy per token the largest is."""
    least, most = inf, 0.0
    for point in points:
        least, most = min(least, point.joules_per_token), max(most, point.joules_per_token)
    return most / least


def front(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats in energy per token and in latency, from the fastest on; of equals, the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.seconds, each.joules_per_token)):
        if not kept or point.joules_per_token < kept[-1].joules_per_token:
            kept.append(point)
    return kept
