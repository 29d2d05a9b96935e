"""Routes: one way to carry out a collective, priced round by round."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, isclose
from typing import Any

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

#: Messages of any size.
ANY = (0.0, inf)


@frozen
class Hop:
    """A transfer over a known protocol: seconds to start (`latency`), and seconds per byte of the message.

    `least` is the seconds per byte at the links' peak bandwidth.  `share` is the part of the message that the source
    sends in the round.
    """

    source: int
    target: int
    latency: float
    per_byte: float
    least: float = 0.0
    share: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size * self.per_byte

    def within(self, rate: float) -> "Hop":
        """The same hop with its source limited to *rate* bytes a second."""
        return evolve(self, per_byte=max(self.per_byte, self.share / rate))


#: Sizes in bytes at which critical paths are found first; nearly all messages lie between them.
ENDS = (0.0, 2.0**40)
#: The critical path at one size: (size, seconds to start, seconds per byte).  Two sizes with equal seconds share their
#: path with all sizes between them.
Line = tuple[float, float, float]


@define(eq=False)
class CriticalPath:
    """The critical path: the slowest chain of hops through rounds in which ranks do not keep step.

    Each chain's seconds are a straight line over the message's size, and the message takes the most of any chain.
    So its seconds are convex in the size, and a chain that is slowest at two sizes is slowest at all between them.
    """

    rounds: Sequence[Sequence[Hop]]
    _lines: list[Line] = field(factory=list, init=False)

    def seconds(self, size: float) -> float:
        """Seconds of the critical path with a message of *size* bytes."""
        lines = self._lines
        if not lines:
            lines += map(self._line_at, ENDS)
        while True:
            place = bisect_left(lines, size, key=lambda line: line[0])
            if place == len(lines):
                return _at(size, self._line_at(size))
            below, above = lines[max(place - 1, 0)], lines[place]
            if above[0] == size or all(map(isclose, below[1:], above[1:])):
                return _at(size, above)
            lines[place:place] = self._between(below, above, size)

    def _between(self, below: Line, above: Line, size: float) -> list[Line]:
        """The lines to insert between two with different paths, found where these two take equally long.

        If a third path is slower there, it lies between them; otherwise nothing does.
        """
        saved = below[2] - above[2]
        crossing = (above[1] - below[1]) / saved if saved else size
        if not below[0] < crossing < above[0]:  # as good as the same
            return [self._line_at(size)]
        third = self._line_at(crossing)
        if isclose(_at(crossing, third), _at(crossing, below)):
            return [(crossing, *below[1:]), (crossing, *above[1:])]
        return [third]

    def _line_at(self, size: float) -> Line:
        """The slowest chain with a message of *size* bytes, found by going through all rounds."""
        ranks, rounds = self._columns
        latency, per_byte, ready = np.zeros((3, ranks))
        for sources, targets, start, rate in rounds:
            starts, rates = latency[sources] + start, per_byte[sources] + rate
            ends = starts + size * rates
            # Of several that end at one rank, the last counts; the slower start if a large size rounds latencies away.
            order = np.lexsort((starts, ends))
            for place in (sources, targets):
                later = order[ends[order] >= ready[place[order]]]
                at = place[later]
                latency[at], per_byte[at], ready[at] = starts[later], rates[later], ends[later]
        last = np.argmax(ready) if ranks else 0
        return (size, float(latency[last]), float(per_byte[last])) if ranks else (size, 0.0, 0.0)

    @cached_property
    def _columns(self) -> tuple[int, list[tuple[NDArray[Any], ...]]]:
        """The number of ranks, and each round's sources, targets, seconds to start and per byte."""
        places: dict[int, int] = {}
        known: dict[int, tuple[NDArray[Any], ...]] = {}
        for hops in self.rounds:
            if id(hops) not in known:
                known[id(hops)] = (
                    np.array([places.setdefault(hop.source, len(places)) for hop in hops], np.int64),
                    np.array([places.setdefault(hop.target, len(places)) for hop in hops], np.int64),
                    np.array([hop.latency for hop in hops]), np.array([hop.per_byte for hop in hops]))
        return len(places), [known[id(hops)] for hops in self.rounds]


def _at(size: float, line: Line) -> float:
    return line[1] + size * line[2]


@frozen
class Route:
    """One way to carry out a collective: an algorithm's rounds over one protocol.

    `sent` is the bytes that a rank sends in all, on average, over the message's size; `routed` is the part of it that
    leaves its node.  `window` is the smallest message that is sent so, and the smallest that is not.
    `interval_factors` are the ends of the 90 % interval of its seconds, over these seconds.
    """

    algorithm: str
    protocol: str
    start: float
    rounds: tuple[tuple[Hop, ...], ...]
    sent: float = 0.0
    routed: float = 0.0
    window: tuple[float, float] = ANY
    interval_factors: tuple[float, float] = (1.0, 1.0)
    #: Seconds to start, and per byte, if all ranks go through the rounds in step.
    even: tuple[float, float] | None = field(init=False)
    _critical_path: CriticalPath = field(init=False, eq=False, repr=False)
    #: Seconds per byte over all rounds at peak bandwidth.
    _least: float = field(init=False, eq=False, repr=False)

    @_critical_path.default
    def _uneven(self) -> CriticalPath:
        return CriticalPath(self.rounds)

    @_least.default
    def _at_peak(self) -> float:
        most = {id(hops): max((hop.least for hop in hops), default=0.0) for hops in self.rounds}
        return sum(most[id(hops)] for hops in self.rounds)

    @even.default
    def _terms(self) -> tuple[float, float] | None:
        distinct = {id(hops): hops for hops in self.rounds}.values()  # many rounds are the same one
        alike = all(len({(hop.latency, hop.per_byte) for hop in hops}) == 1 for hops in distinct)
        # Whoever sends had part in the round before, so nobody is ahead.
        in_step = all({hop.source for hop in hops} <= {rank for hop in before for rank in (hop.source, hop.target)}
                      for before, hops in {(id(one), id(two)): (one, two)
                                           for one, two in pairwise(self.rounds)}.values())
        if not (alike and in_step):
            return None
        return sum(hops[0].latency for hops in self.rounds), sum(hops[0].per_byte for hops in self.rounds)

    def seconds(self, size: float) -> float:
        """Seconds from the arrival of the last rank until every rank has its result."""
        if self.even is not None:
            return self.start + self.even[0] + size * self.even[1]
        return self.start + self._critical_path.seconds(size)

    def erring(self, deviation: float) -> float:
        """By what its seconds are multiplied where they are off by so many standard deviations, of which 1.6449 lie
        between them and either end of the 90 % interval."""
        low, high = self.interval_factors
        return float((low if deviation < 0 else high) ** (abs(deviation) / 1.6449))

    def within(self, rate: float) -> "Route":
        """The same route with every rank limited to *rate* bytes a second."""
        slower = {id(hops): tuple(hop.within(rate) for hop in hops) for hops in self.rounds}
        return evolve(self, rounds=tuple(slower[id(hops)] for hops in self.rounds))

    def least(self, size: float) -> float:
        """Seconds of its rounds without latency and at peak bandwidth: the lower bound."""
        return size * self._least
