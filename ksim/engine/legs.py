"""Legs: a timeline as its ranks play it, cut at the collectives at which they meet."""

from collections.abc import Sequence
from typing import NamedTuple

from attrs import define, evolve, field, frozen

from ksim.flow.costs import ClockScaling
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock


class Leg(NamedTuple):
    """A rank computes for `alone` seconds, meets its peers for `together`, and beside that computes for `beside`."""

    alone: float
    together: float
    beside: float


@frozen
class Stretch:
    """Kernels of one rank in a row: seconds at the boost clock, `clocked` or not, and how often each hole comes."""

    steady: float = 0.0
    clocked: float = 0.0
    holes: tuple[tuple[int, int], ...] = ()

    def and_then(self, span: KernelCost | int, times: int = 1) -> "Stretch":
        """The same, and *span* so many times at its end; what is hidden runs at the boost clock."""
        if isinstance(span, int):
            return evolve(self, holes=(*self.holes, (span, times)))
        if span.is_compute_bound and not span.hidden:
            return evolve(self, clocked=self.clocked + times * span.lasts)
        return evolve(self, steady=self.steady + times * span.lasts)

    def seconds(self, fills: Sequence[KernelCost], pace: float) -> float:
        own = sum(times * fills[hole].lasts * (pace if fills[hole].is_compute_bound else 1.0)
                  for hole, times in self.holes)
        return self.steady + pace * self.clocked + own


@frozen(eq=False)
class Open:
    """A leg of all steps of a shape: what fills its holes, and at what clock, is open."""

    alone: Stretch
    together: float = 0.0
    beside: Stretch = Stretch()

    def leg(self, fills: Sequence[KernelCost], pace: float) -> Leg:
        return Leg(self.alone.seconds(fills, pace), self.together, self.beside.seconds(fills, pace))


@define(eq=False)
class Way:
    """All legs of a step's blocks in order, equal ones the same object."""

    legs: list[Open] = field(factory=list, init=False)
    _alone: Stretch = field(default=Stretch(), init=False)
    _hidden: KernelCost | None = field(default=None, init=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock]) -> "Way":
        way = cls()
        for block in blocks:
            way._take(block)
        way.legs.append(Open(way._alone))
        return way

    def timed(self, fills: Sequence[KernelCost], pace: ClockScaling) -> list[Leg]:
        """The legs of a step with such *fills*, at *pace*."""
        known = {leg: leg.leg(fills, pace.time) for leg in dict.fromkeys(self.legs)}
        return [known[leg] for leg in self.legs]

    def _take(self, lap: PricedBlock) -> None:
        """Add a block; once it follows itself, all that is to come is the same."""
        if not any(isinstance(span, KernelCost) and span.group for span in lap.launches):
            for span in lap.launches:
                self._alone = self._alone.and_then(span, lap.repeat)
            return
        for _ in range(min(lap.repeat, 2)):
            before = len(self.legs)
            for span in lap.launches:
                self._add(span)
        self.legs += self.legs[before:] * (lap.repeat - 2)

    def _add(self, span: KernelCost | int) -> None:
        if isinstance(span, KernelCost) and span.hidden:
            self._hidden = span
            return
        hidden, self._hidden = self._hidden, None
        if isinstance(span, KernelCost) and span.group:
            self._meet(span, hidden)
        elif hidden:
            self._meet(hidden, span)
        else:
            self._alone = self._alone.and_then(span)

    def _meet(self, message: KernelCost, product: KernelCost | int | None) -> None:
        assert message.group, "what is hidden is a collective, or runs beside one"
        beside = Stretch() if product is None else Stretch().and_then(product)
        self.legs.append(Open(self._alone, message.lasts, beside))
        self._alone = Stretch()
