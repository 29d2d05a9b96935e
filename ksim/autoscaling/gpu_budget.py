"""The GPUs that a planner may use, at least and at most: what becomes of a proposal that does not fit.

Rules are those of Dynamo's planner 1.6.1, dynamo/planner/core/budget.py.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil

from attrs import evolve, frozen

#: Replicas of each role, in the order of a budget's costs.
Counts = tuple[int, ...]


@frozen
class GpuBudget:
    """From `least` to `most` GPUs, -1 for no such limit; `costs` are GPUs of a replica, `floors` fewest replicas.

    With both limits, the lower one may be missed by one replica: steps of one role need not cancel those of another.
    The upper one never is.
    """

    costs: Counts
    floors: Counts
    least: int = -1
    most: int = -1

    def total(self, counts: Counts) -> int:
        return sum(count * cost for count, cost in zip(counts, self.costs, strict=True))

    @property
    def without_floor(self) -> "GpuBudget":
        """The same without the lower limit, which guards falls and is no demand."""
        return evolve(self, least=-1)

    @property
    def strict(self) -> "GpuBudget":
        """The same without the upper limit, and so without tolerance."""
        return evolve(self, most=-1)

    @property
    def _lowest(self) -> int:
        """The fewest GPUs that are in the band; negative for any."""
        if self.least < 0:
            return -1
        return self.least - (max(self.costs) if self.most >= 0 else 0)

    def holds(self, counts: Counts) -> bool:
        total = self.total(counts)
        return total >= self._lowest and (self.most < 0 or total <= self.most)

    # Into the band, wherever that leads.

    def clamp(self, counts: Counts) -> Counts:
        """*counts* brought into the band, shares alike; no replicas at all where even the floors do not fit."""
        if self.holds(counts):
            return counts
        if 0 <= self.most < self.total(counts):
            return self._shrunk(counts) if self.total(self.floors) <= self.most else (0,) * len(counts)
        return self._grown(counts)

    def _shrunk(self, counts: Counts) -> Counts:
        if len(counts) == 1:
            return (max(self.floors[0], self.most // self.costs[0]),)
        (first, _), (first_cost, cost), (first_floor, floor) = counts, self.costs, self.floors
        most_first = (self.most - floor * cost) // first_cost
        share = int(first * (self.most / self.total(counts)))
        new = max(first_floor, min(most_first, share))
        return new, max(floor, (self.most - new * first_cost) // cost)

    def _grown(self, counts: Counts) -> Counts:
        if len(counts) == 1:
            return (max(self.floors[0], ceil(self.least / self.costs[0])),)
        (first, second), (first_cost, cost), (first_floor, floor) = counts, self.costs, self.floors
        total = self.total(counts)
        new = max(first_floor, ceil(first * (self.least / total)) if total > 0 else ceil(self.least / 2 / first_cost))
        other = max(floor, ceil(max(0, self.least - new * first_cost) / cost))
        grown = new, max(second, other)
        if self.most < 0 or self.total(grown) <= self.most:
            return grown
        # Rounding the first role up must not shrink the second to meet the floor.
        return self.fit(counts, (new, second)) if other < second else counts

    # Between what is and what is asked for.

    def fit(self, current: Counts, proposed: Counts) -> Counts:
        """The counts in the band that are nearest to *proposed*, none beyond it or behind *current*.

        Of equals, those with shares alike, then the larger step.  An exchange moves both roles or neither.
        """
        candidates = [counts for counts in self._between(current, proposed) if self.holds(counts)]
        asked = [abs(new - old) for new, old in zip(proposed, current, strict=True)]

        def badness(counts: Counts) -> tuple[int, int, int, Counts]:
            moved = [abs(new - old) for new, old in zip(counts, current, strict=True)]
            skew = abs(moved[0] * asked[-1] - moved[-1] * asked[0])
            return sum(asked) - sum(moved), skew, -sum(moved), counts

        return min(candidates, key=badness, default=current)

    def _between(self, current: Counts, proposed: Counts) -> Iterator[Counts]:
        exchange = is_exchange(current, proposed)
        ranges = [range(max(min(old, new), floor), max(old, new) + 1)
                  for old, new, floor in zip(current, proposed, self.floors, strict=True)]
        for counts in product(*ranges):
            moved = [new != old for new, old in zip(counts, current, strict=True)]
            if not exchange or all(moved) or not any(moved):
                yield counts

    def guard(self, current: Counts, proposed: Counts) -> tuple[Counts, str]:
        """What is left of a proposal, and "hold" or "reconcile" where the budget decides.

        A band that *current* has left already is entered again, whatever is proposed.  Else nothing may fall at the
        lower limit or rise at the upper one, but for an exchange, and nothing turns round.
        """
        if not self.holds(current):
            return self.clamp(current), "reconcile"
        ups = any(new > old for new, old in zip(proposed, current, strict=True))
        downs = any(new < old for new, old in zip(proposed, current, strict=True))
        total = self.total(current)
        at_least, at_most = total <= self.least and downs, 0 <= self.most <= total and ups
        if at_least or at_most:
            fitted = self.fit(current, proposed) if is_exchange(current, proposed) else current
            return (fitted, "") if fitted != current else (current, "hold")
        final = self.clamp(proposed)
        turned = any(not min(old, new) <= got <= max(old, new)
                     for old, new, got in zip(current, proposed, final, strict=True))
        return (current, "hold") if turned or not self.holds(final) else (final, "")


def is_exchange(current: Sequence[int], proposed: Sequence[int]) -> bool:
    """Whether one role is to rise while the other falls."""
    changes = [new - old for new, old in zip(proposed, current, strict=True)]
    return min(changes) < 0 < max(changes)
