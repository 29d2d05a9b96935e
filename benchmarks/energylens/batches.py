"""Fixed batches of equal requests: the energy and time of their prompts and decodes, over many deployments."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

from attrs import evolve, field, frozen

from ksim.cost.energy import Clock
from ksim.cost.step import Timer
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import StepCost
from ksim.scenario.cache_layout import Memory
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.scenario.sizing import activations, memory

#: The grids of the paper: 7 batches, 32 lengths, 3 tensor-parallel sizes.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = tuple(range(256, 8193, 256))
TENSORS = (2, 4, 8)
#: The hardware and software that the paper measured.
_MEASURED_ON = {"gpu": "a100-80g", "engine": "trtllm-1.0", "host": "trtllm", "workload": ANY_WORKLOAD}


@frozen
class BatchPoint:
    """A step of `batch` equal requests: prompts of `length` tokens, or decodes with as many tokens in the cache.

    `joules` are those of all `gpus`, with their idle power.  Collectives take the share `exchanging` of the seconds and
    the share `exchanged` of the joules.  `variant` names the settings in which its bench differs from others.
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
        """Mean power of one GPU."""
        return self.joules / self.seconds / self.gpus

    @property
    def exchange_watts(self) -> float:
        """Mean power of one GPU during collectives; 0 without any."""
        return self.exchanged * self.watts / self.exchanging if self.exchanging else 0.0


@frozen
class Bench:
    """A model on some GPUs, for which batches are priced."""

    deployment: Deployment
    variant: str
    _timer: Timer = field(repr=False)
    _memory: Memory = field(repr=False)

    @classmethod
    def of(cls, model: str, tensor: int, variant: str = "", **serve: Any) -> "Bench":
        """*model* on *tensor* A100 under TensorRT-LLM, with further settings of `serve`; raises KsimError."""
        settings = {"tensor_parallel_size": tensor, **serve}
        deployment = Deployment.of(Scenario.of({**_MEASURED_ON, "model": model, "serve": settings}, model))
        part = memory(deployment.model, deployment.shards[0], deployment.gpu, deployment.serve)
        return cls(deployment, variant, deployment.timers()[0], part)

    @property
    def gpus(self) -> int:
        return self.deployment.serve.gpus

    @property
    def limit(self) -> float:
        """The power limit of one GPU, in watts."""
        return self.deployment.gpu.power.limit

    def prefill(self, batch: int, length: int) -> BatchPoint:
        """All prompts in one step."""
        return self._point("prefill", batch, length, Batch.of(*[(length, 0)] * batch))

    def decode(self, batch: int, length: int) -> BatchPoint:
        return self._point("decode", batch, length, Batch.of(*[(1, length)] * batch))

    def holds(self, batch: int, length: int, at_once: int | None = None) -> bool:
        """Whether *batch* requests of *length* tokens fit in memory with steps of *at_once* tokens.

        By default, steps are as large as the engine allows.
        """
        part, shard = self._memory, self.deployment.shards[0]
        if at_once is not None:
            step = Batch.of((at_once, 0))
            part = evolve(part, activations=activations(self.deployment.model, step, min(batch, at_once), shard))
        return part.blocks(1) >= batch * length

    def prefills(self, batches: Iterable[int], lengths: Iterable[int]) -> Iterator[BatchPoint]:
        """All that fit in memory, in order of batch and length."""
        lengths = tuple(lengths)
        yield from (self.prefill(batch, length) for batch in batches for length in lengths
                    if self.holds(batch, length, at_once=batch * length))

    def decodes(self, batches: Iterable[int], lengths: Iterable[int]) -> Iterator[BatchPoint]:
        """All that fit in memory, in order of batch and length."""
        lengths = tuple(lengths)
        yield from (self.decode(batch, length) for batch in batches for length in lengths if self.holds(batch, length))

    def _point(self, phase: str, batch: int, length: int, step: Batch) -> BatchPoint:
        cost, power = self._timer.step_cost(step), self.deployment.gpu.power
        scaling = Clock(power, power.clocks).pace(cost, 0.0) if power.clocks else AT_BOOST
        seconds = max(cost.seconds_at(scaling), cost.launch_seconds)
        joules = cost.joules_at(scaling) + power.idle * seconds
        exchanging, exchanged = _collectives(cost, scaling, power.idle)
        return BatchPoint(phase, self.gpus, batch, length, seconds, self.gpus * joules, exchanging / seconds,
                     exchanged / joules, self.variant)


def _collectives(cost: StepCost, scaling: ClockScaling, idle: float) -> tuple[float, float]:
    """Seconds and joules of one GPU in collectives."""
    runs = [(kernel, count) for kernel, count in cost.counted() if kernel.bound == "communication"]
    seconds = sum(count * kernel.seconds for kernel, count in runs)
    joules = sum(count * kernel.joules_at(scaling) for kernel, count in runs)
    return seconds, joules + idle * seconds


def spread(points: Iterable[BatchPoint]) -> float:
    """The largest energy per token over the smallest."""
    least, most = inf, 0.0
    for point in points:
        least, most = min(least, point.joules_per_token), max(most, point.joules_per_token)
    return most / least


def front(points: Iterable[BatchPoint]) -> list[BatchPoint]:
    """The Pareto front of energy per token and latency, the fastest first; of equal points, the first."""
    kept: list[BatchPoint] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.joules_per_token)):
        if not kept or point.joules_per_token < kept[-1].joules_per_token:
            kept.append(point)
    return kept


@frozen
class Phases:
    """A figure of prompts, and the same figure of decodes."""

    prefill: float
    decode: float


@frozen
class Survey:
    """Prompts and decodes of a model over numbers of GPUs, batches and lengths: all that fit in memory.

    `limit` is the power limit of one GPU.
    """

    limit: float
    prefills: tuple[BatchPoint, ...]
    decodes: tuple[BatchPoint, ...]

    @classmethod
    def of(cls, model: str, tensors: Sequence[int] = TENSORS, batches: Sequence[int] = BATCHES,
           lengths: Sequence[int] = LENGTHS, **serve: Any) -> "Survey":
        """Price *model* on each number of A100 in *tensors*; `serve` has further settings.  Raises KsimError."""
        benches = [Bench.of(model, tensor, **serve) for tensor in tensors]
        return cls(benches[0].limit,
                   tuple(point for bench in benches for point in bench.prefills(batches, lengths)),
                   tuple(point for bench in benches for point in bench.decodes(batches, lengths)))

    @property
    def variation(self) -> Phases:
        """The largest energy per token over the smallest, over all points."""
        return Phases(spread(self.prefills), spread(self.decodes))

    def batch_effect(self, gpus: int, length: int) -> Phases:
        """The same over batches, for so many GPUs and one length."""
        return Phases(*(spread(point for point in points if (point.gpus, point.length) == (gpus, length))
                        for points in (self.prefills, self.decodes)))

    @property
    def below_limit(self) -> Phases:
        """The largest share of the power limit that a GPU does not draw."""
        return Phases(*(1.0 - min(point.watts for point in points) / self.limit
                        for points in (self.prefills, self.decodes)))

    @property
    def thriftiest(self) -> tuple[BatchPoint, BatchPoint]:
        """The prompts and the decodes with the least energy per token."""
        return _least(self.prefills), _least(self.decodes)

    def fronts(self, length: int) -> tuple[list[BatchPoint], list[BatchPoint]]:
        """The fronts of prompts and of decodes of one *length*."""
        first, second = (front(point for point in points if point.length == length)
                         for points in (self.prefills, self.decodes))
        return first, second


def _least(points: Iterable[BatchPoint]) -> BatchPoint:
    return min(points, key=lambda point: point.joules_per_token)
