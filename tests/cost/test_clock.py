"""The clock under a power limit of 700 W, 100 of which are idle power, with 10 J of credit."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.clock import Clock
from ksim.flow.timeline import Lap, Span, Timeline
from ksim.foundation.units import DType
from ksim.specs.hardware import Boost, Power

BOOST = Boost(credit=10.0, energy=1.0, slowing=0.5, source="a test")
POWER = Power(idle=100.0, limit=700.0, flop={DType.BF16: 1e-12}, hbm=0.0, link=0.0, source="a test", boost=BOOST)


def step(seconds: float, watts: float, bound: str = "compute") -> Timeline:
    """A step that draws so much more than idle power."""
    return Timeline.of([Lap((Span("work", "gemm", seconds, joules=watts * seconds, bound=bound),))])


def clock(**changes: float) -> Clock:
    return Clock(POWER, evolve(BOOST, **changes))


def test_below_the_limit_nothing_slows_down():
    ours = clock()
    assert [ours.pace(step(1.0, 599.0), start) for start in range(5)] == [1.0] * 5


def test_a_short_burst_above_the_limit_is_carried_by_credit():
    """1,000 W for 30 ms are 9 J more than the limit allows."""
    assert clock().pace(step(0.030, 900.0), 0.0) == 1.0


def test_without_credit_the_clock_falls():
    """900 W of 600: at a slowing of one half, sqrt(1.5) times as long."""
    ours = clock()
    ours.pace(step(1.0, 900.0), 0.0)
    assert ours.pace(step(0.1, 900.0), 5e-9 + 1.2) == pytest.approx(1.5**0.5, rel=1e-3)


def test_half_a_step_on_credit_is_half_way():
    """300 W above the limit for 67 ms are 20 J, and there are 10."""
    assert clock().pace(step(0.2 / 3, 900.0), 0.0) == pytest.approx((1 + 1.5**0.5) / 2)


def test_credit_comes_back_while_the_gpu_is_idle_or_waits_for_memory():
    """10 J at 600 W below the limit, or at 100 W below it: 17 ms, or 100."""
    for rest, ready in ((None, 1 / 60), (step(0.1, 500.0, bound="memory"), 0.1)):
        ours = clock()
        end = 1.0 * ours.pace(step(1.0, 900.0), 0.0)
        if rest is not None:
            ours.pace(rest, end)
        assert ours.pace(step(0.02, 900.0), end + ready) == pytest.approx(1.0)


def test_a_higher_voltage_at_the_boost_clock_takes_more_energy():
    """500 W as measured at the limit are 650 at the boost clock, which is 50 too many."""
    ours = clock(energy=1.3)
    ours.pace(step(10.0, 500.0), 0.0)
    assert ours.pace(step(1.0, 500.0), 10.5) > 1.0


@given(st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(0, 2000), st.floats(0, 0.5)), min_size=1, max_size=20))
def test_no_step_is_faster_than_at_the_boost_clock_or_slower_than_at_the_limit(steps):
    ours, now = clock(), 0.0
    for seconds, watts, pause in steps:
        now += pause
        timeline = step(seconds, watts)
        pace = ours.pace(timeline, now)
        assert 1.0 <= pace <= max(1.0, watts / 600.0) ** 0.5 + 1e-9
        now += timeline.paced(pace)
