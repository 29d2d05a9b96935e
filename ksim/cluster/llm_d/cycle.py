"""The values that the parts of llm-d's endpoint picker share: the choice under way, profiles, scores and durations."""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from attrs import define, field, frozen

from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["APPROXIMATE", "IN_FLIGHT", "PRECISE", "Chance", "Cycle", "InFlightLoad", "Match", "Bounded",
           "SchedulerProfile", "least_best", "seconds"]


#: The producers that parts read unless their parameters name others.
APPROXIMATE, PRECISE, IN_FLIGHT = ("approx-prefix-cache-producer", "precise-prefix-cache-producer",
                                   "inflight-load-producer")


@define(eq=False)
class Chance:
    """Draws random numbers from a stream of *seed*, which is made when it is first needed."""

    seed: int
    name: str = "llm_d"
    _stream: Any = field(default=None, init=False)

    @property
    def stream(self) -> Any:
        if self._stream is None:
            self._stream = stream(self.seed, self.name)
        return self._stream

    def below(self, count: int) -> int:
        """A whole number from 0 to *count* - 1."""
        return int(self.stream.integers(count))

    def share(self) -> float:
        """A number from 0 to 1, and less than that."""
        return float(self.stream.random())


@frozen
class Match:
    """The parts of a prompt that engines have, by their numbers: so many `blocks` of its `total`.

    Where lower tiers are known, a block in one of them counts as less than 1 in `weighted`, and `blocks` are rounded
    down from these.
    """

    total: int
    block_tokens: int
    blocks: Mapping[int, int] = field(factory=dict)
    weighted: Mapping[int, float] = field(factory=dict)

    def share(self, number: int) -> float:
        """The share of the prompt that engine *number* has."""
        return self.blocks.get(number, 0) / self.total if self.total else 0.0

    def tokens(self, number: int) -> int:
        return self.blocks.get(number, 0) * self.block_tokens


@frozen
class InFlightLoad:
    """Requests and tokens in flight to engines, by their numbers, and the tokens that the request would add."""

    requests: Mapping[int, int]
    tokens: Mapping[int, int]
    added: Mapping[int, int]


@define(eq=False)
class Cycle:
    """A choice under way, as parts see it: the request, the time, chance, and the results of producers by name."""

    request: Request
    now: float
    chance: Chance
    matches: MutableMapping[str, Match] = field(factory=dict)
    loads: MutableMapping[str, InFlightLoad] = field(factory=dict)


@frozen
class SchedulerProfile:
    """Filters, then scorers with their weights, then a picker.

    Source: llm-d-router, pkg/epp/scheduling/scheduler_profile.go (October 2026).
    """

    filters: Sequence[Any]
    scorers: Sequence[tuple[float, Any]]
    picker: Any

    def run(self, cycle: Cycle, engines: Sequence[V]) -> tuple[V | None, Sequence[V], Sequence[float]]:
        """The engine that is picked, those that were scored, and their scores; no engine if filters leave none."""
        left: Sequence[V] = engines
        for part in self.filters:
            left = part.keep(cycle, left)
            if not left:
                return None, (), ()
        scores = self._scores(cycle, left)
        return self.picker.pick(cycle, left, scores), left, scores

    def _scores(self, cycle: Cycle, engines: Sequence[V]) -> Sequence[float]:
        totals = [0.0] * len(engines)
        scored = [(weight, scorer.score(cycle, engines)) for weight, scorer in self.scorers]
        for (weight, scores), (other, others) in zip(scored[::2], scored[1::2], strict=False):  # two at a time: faster
            totals = [total + weight * score + other * also
                      for total, score, also in zip(totals, scores, others, strict=False)]
        if len(scored) % 2:
            weight, scores = scored[-1]
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        return totals


@frozen
class Bounded:
    """A scorer from outside ksim, whose scores are cut to the range from 0 to 1, as llm-d does with all."""

    scorer: Any

    def score(self, cycle: Cycle, engines: Sequence[V]) -> Sequence[float]:
        return [min(max(score, 0.0), 1.0) for score in self.scorer.score(cycle, engines)]


def least_best(amounts: Sequence[float]) -> list[float]:
    """1 for the least of *amounts*, 0 for the most, in proportion between; 1 for all if they are equal."""
    least, most = min(amounts), max(amounts)
    if least == most:
        return [1.0] * len(amounts)
    spread = most - least
    return [(most - amount) / spread for amount in amounts]


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def seconds(duration: Any) -> float:
    """The seconds of a *duration* such as "200ms" or "1m30s"; a number is in seconds already.

    Raises ValueError for anything else.
    """
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)", str(duration))
    if not parts or "".join(map("".join, parts)) != str(duration):
        raise ValueError(f"{duration!r} is no duration such as '200ms'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
