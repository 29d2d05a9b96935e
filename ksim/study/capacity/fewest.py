"""The fewest replicas of a set-up that carry a rate."""

from collections.abc import Callable
from math import ceil

from attrs import frozen

from ksim.foundation.errors import KsimError
from ksim.study.capacity.estimate import RatePoint
from ksim.study.capacity.judge import Judge, keeps
from ksim.study.capacity.light import Light
from ksim.study.capacity.setups import SetUp

#: With so many replicas that requests keep each busy for less than this share of its time, more change nothing.
_IDLE = 0.25
#: How much of what it completes under a flood a set-up usually carries within its targets.
KEPT = 0.75


@frozen
class Fewest:
    """`replicas` that carry the rate, and how the run with so many went.

    Where no number does, `replicas` is None, and `point` is of the largest that was tried.
    """

    replicas: int | None
    point: RatePoint


def fewest(judge: Judge, setup: SetUp, rate: float, light: Light, flood: float) -> Fewest:
    """Search from what *flood* says, the requests/s that one replica completes where all arrive at once.

    Replication r is the same traffic for any number of replicas, so that more of them do not look worse by chance.
    Raises KsimError for a rate that no number carries, as there can be only so many.
    """
    if flood * setup.most < rate:
        raise KsimError(f"{rate:g} requests/s are more than {setup.most:,} replicas complete, which are the most there"
                        f" can be")
    points: dict[int, RatePoint] = {}

    def carries(count: int) -> bool:
        if count not in points:
            points[count] = judge.decide(setup, count, rate)
        return keeps(points[count])

    most = max(1, min(setup.most, ceil(rate * light.seconds / _IDLE)))
    first = max(1, round(min(most, rate / (KEPT * flood))))
    between = _down(carries, first) if carries(first) else _up(carries, first, most)
    if between is None:
        return Fewest(None, points[max(points)])
    count = _bisected(carries, *between)
    return Fewest(count, points[count])


def _down(carries: Callable[[int], bool], enough: int) -> tuple[int, int]:
    """Below *enough*, which carries: a number that does not, and one that does, in steps that double."""
    step = 1
    while enough > 1:
        lower = max(1, enough - step)
        if not carries(lower):
            return lower, enough
        enough, step = lower, 2 * step
    return 0, 1


def _up(carries: Callable[[int], bool], short: int, most: int) -> tuple[int, int] | None:
    """Above *short*, which does not carry: the same; None where no number up to *most* does."""
    step = 1
    while short < most:
        higher = min(most, short + step)
        if carries(higher):
            return short, higher
        short, step = higher, 2 * step
    return None


def _bisected(carries: Callable[[int], bool], short: int, enough: int) -> int:
    """The least number above *short* that *carries*; *enough* does."""
    while enough - short > 1:
        middle = (short + enough) // 2
        if carries(middle):
            enough = middle
        else:
            short = middle
    return enough
