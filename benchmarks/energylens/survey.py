"""Energy over many deployments and batches: what the paper's sweeps of prompts and decodes found, one property each."""

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from benchmarks.energylens.points import Bench, Point, front, spread

#: The paper's grids: 7 batches, 32 lengths, 3 sizes of tensor parallelism.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = tuple(range(256, 8193, 256))
TENSORS = (2, 4, 8)


@frozen
class Phases:
    """A figure of the prompts' phase, and the same of the decodes'."""

    prefill: float
    decode: float


@frozen
class Survey:
    """Prompts and decodes of a model, over numbers of GPUs, batches and lengths, all that fit in memory."""

    limit: float
    prefills: tuple[Point, ...]
    decodes: tuple[Point, ...]

    @classmethod
    def of(cls, model: str, tensors: Sequence[int] = TENSORS, batches: Sequence[int] = BATCHES,
           lengths: Sequence[int] = LENGTHS, **serve: Any) -> "Survey":
        """Price *model* on each of so many A100; `serve` has further settings.  Raises KsimError."""
        benches = [Bench.of(model, tensor, **serve) for tensor in tensors]
        return cls(benches[0].limit,
                   tuple(point for bench in benches for point in bench.prefills(batches, lengths)),
                   tuple(point for bench in benches for point in bench.decodes(batches, lengths)))

    @property
    def variation(self) -> Phases:
        """How many times the least energy per token the largest is, over all."""
        return Phases(spread(self.prefills), spread(self.decodes))

    def batch_effect(self, gpus: int, length: int) -> Phases:
        """The same over batches alone."""
        return Phases(*(spread(point for point in points if (point.gpus, point.length) == (gpus, length))
                        for points in (self.prefills, self.decodes)))

    @property
    def below_limit(self) -> Phases:
        """The largest share of the power limit that a GPU leaves undrawn."""
        return Phases(*(1.0 - min(point.watts for point in points) / self.limit
                        for points in (self.prefills, self.decodes)))

    @property
    def thriftiest(self) -> tuple[Point, Point]:
        """The prompts and the decodes of least energy per token."""
        return _least(self.prefills), _least(self.decodes)

    def fronts(self, length: int) -> tuple[list[Point], list[Point]]:
        """Prompts and decodes of *length* that nothing beats in both energy per token and latency."""
        first, second = (front(point for point in points if point.length == length)
                         for points in (self.prefills, self.decodes))
        return first, second


def _least(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: point.joules_per_token)
