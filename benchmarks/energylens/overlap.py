"""Which ways to overlap products with their all-reduces are best in energy and latency, and when none is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from benchmarks.energylens.points import Bench, Point, front
from benchmarks.energylens.survey import TENSORS

#: The paper's, by name: four stages as Megatron-LM has them, on so many SMs; or none.
NONE, MOST = "no overlap", "16 SMs"
WAYS: Mapping[str, Mapping[str, Any]] = {
    NONE: {}, **{f"{sms} SM{'s' * (sms > 1)}": {"overlap_stages": 4, "overlap_sms": sms} for sms in (1, 4, 16)}}
BATCHES = (1, 2, 4, 8, 16)


@frozen
class Overlaps:
    """Prompts priced in every way to overlap."""

    points: tuple[Point, ...]

    @classmethod
    def of(cls, model: str, tensors: Sequence[int] = TENSORS, batches: Sequence[int] = BATCHES,
           length: int = 4096) -> "Overlaps":
        """All that fit in memory; raises KsimError."""
        return cls(tuple(point for tensor in tensors for way, serve in WAYS.items()
                         for point in Bench.of(model, tensor, way, **serve).prefills(batches, [length])))

    @property
    def front(self) -> list[Point]:
        """Those that nothing beats in both energy per token and latency."""
        return front(self.points)

    def recovered(self, way: str) -> float:
        """The share of the front that one finds who always overlaps that *way*."""
        found = front(point for point in self.points if point.variant == way)
        best = self.front
        return sum(point in found for point in best) / len(best)

    def change(self, way: str, gpus: int, batch: int) -> tuple[float, float]:
        """Seconds and joules of a *way* over those of no overlap."""
        plain, other = (_only(self.points, name, gpus, batch) for name in (NONE, way))
        return other.seconds / plain.seconds, other.joules / plain.joules


def _only(points: Iterable[Point], way: str, gpus: int, batch: int) -> Point:
    return next(point for point in points if (point.variant, point.gpus, point.batch) == (way, gpus, batch))
