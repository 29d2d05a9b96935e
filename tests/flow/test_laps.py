"""Laps that nobody has made yet are those that somebody has."""

import pickle

from ksim.flow.laps import Laps
from ksim.flow.timeline import Lap, Span, Timeline

MADE = (Lap((Span("a", "gemm", 1e-3), 0), 3), Lap((Span("b", "gemm", 1e-3),)))


def counted():
    asked = []
    return asked, Laps(lambda: asked.append(1) or iter(MADE))


def test_lazy_laps_are_made_once_and_not_before_they_are_read():
    asked, laps = counted()
    timeline = Timeline(laps, (), 0.0, 0.0, 0.0, 0.0)
    assert not asked
    assert (len(laps), laps[0], list(laps), laps[-1:]) == (2, MADE[0], [*MADE], MADE[1:])
    assert timeline.laps is laps
    assert len(asked) == 1


def test_lazy_laps_equal_laps_that_are_made():
    one, other = counted()[1], counted()[1]
    assert one == other
    assert one == MADE
    assert hash(one) == hash(MADE)
    assert one != MADE[:1]


def test_pickled_laps_are_made_and_still_shared():
    laps = counted()[1]
    one, other = pickle.loads(pickle.dumps([laps, laps]))
    assert one is other
    assert one == MADE
