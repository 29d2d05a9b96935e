"""The clock under a power limit of 700 W, 100 of which are idle power, with 10 J of credit."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.energy import Clock, Setting
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation.units import DType
from ksim.specs.hardware import Clocks, Power

#: At half the clock 0.7 of the voltage, so half of the joules, and twice the time.
CLOCKS = Clocks(voltage={"2 GHz": 1.0, "1 GHz": 0.5**0.5}, share=1.0, credit=10.0, source="a test")
POWER = Power(idle=100.0, limit=700.0, flop={DType.BF16: 1e-12}, hbm=0.0, link=0.0, source="a test", clocks=CLOCKS)


def step(seconds: float, watts: float, bound: str = "compute", core: float = 1.0, busy: float = 0.0) -> StepCost:
    """A step that draws so much more than idle power: shares of it for what its SMs do, and while they do anything."""
    drawn = watts * seconds
    work = KernelCost.of("work", "gemm", seconds, joules=drawn, bound=bound, sm_action_joules=core * drawn,
                         sm_active_joules=busy * drawn)
    return StepCost.of([PricedBlock.of((work,))])


def clock(**changes) -> Clock:
    return Clock(POWER, evolve(CLOCKS, **changes))


shares, spans = st.floats(0.0, 1.0), st.builds(
    lambda seconds, joules, core, busy, bound: KernelCost.of("work", "gemm", seconds, joules=joules, bound=bound,
                                                    sm_action_joules=core * joules, sm_active_joules=busy * joules),
    st.floats(0.0, 1.0), st.floats(0.0, 900.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0),
    st.sampled_from(["compute", "memory", "communication"]))


@given(runs=st.lists(st.tuples(spans, st.integers(1, 9)), min_size=1),
       pace=st.builds(ClockScaling, st.floats(1.0, 3.0), shares, shares))
def test_a_step_draws_at_any_pace_what_its_spans_draw(runs, pace):
    timeline = StepCost.of([PricedBlock.of((span,), count) for span, count in runs])
    joules = sum(count * span.joules_at(pace) for span, count in runs)
    assert timeline.joules_at(pace) == pytest.approx(joules, abs=1e-6)


def test_below_the_limit_nothing_slows_down():
    ours = clock()
    assert [ours.pace(step(1.0, 599.0), start) for start in range(5)] == [ClockScaling()] * 5


def test_a_short_burst_above_the_limit_is_carried_by_credit():
    """1,000 W for 30 ms are 9 J more than the limit allows."""
    assert clock().pace(step(0.030, 900.0), 0.0) == ClockScaling()


def test_a_gpu_that_idles_above_its_limit_has_no_credit_at_first():
    ours, limit = step(0.001, 900.0), Setting(cap=90.0)
    assert clock().pace(ours, 0.0, limit) == clock(credit=0.0).pace(ours, 0.0, limit) != ClockScaling()


def test_without_credit_the_clock_falls_until_the_limit_is_kept():
    ours, tired = step(0.1, 900.0), clock(credit=0.0)
    pace = tired.pace(ours, 0.0)
    assert tired.watts(ours, pace) == pytest.approx(700.0, rel=2e-3)
    assert 1.0 < pace.time < 2.0 and 0.5 < pace.energy < 1.0
    assert pace.time == pytest.approx(2e9 / pace.clock)


def test_what_waits_for_memory_gives_up_its_clock_and_no_time():
    ours, tired = step(0.1, 900.0, bound="memory"), clock(credit=0.0)
    pace = tired.pace(ours, 0.0)
    assert ours.seconds_at(pace) == ours.seconds
    assert tired.watts(ours, pace) == pytest.approx(700.0, rel=2e-3)


def test_sms_that_only_wait_draw_less_by_the_clock_and_by_its_voltage():
    """Half the clock at half of the joules: a quarter of the watts."""
    ours = step(1.0, 100.0, bound="memory", core=0.0, busy=1.0)
    assert ours.joules_at(clock().pace(ours, 0.0, Setting(clock=1e9))) == pytest.approx(25.0)


def test_what_lower_clocks_do_not_save_stays_above_the_limit_at_the_lowest():
    """2,000 W of memory traffic: nothing that the SMs could do about it."""
    pace = clock(credit=0.0).pace(step(0.1, 2000.0, bound="memory", core=0.0), 0.0)
    assert pace.clock == pytest.approx(1e9, rel=2e-3)


def test_half_a_step_on_credit_is_half_way():
    """300 W above the limit for 67 ms are 20 J, and there are 10."""
    ours = step(0.2 / 3, 900.0)
    slow = clock(credit=0.0).pace(ours, 0.0)
    assert clock().pace(ours, 0.0).time == pytest.approx((1 + slow.time) / 2)


def test_credit_comes_back_while_the_gpu_is_idle_or_waits_for_memory():
    """10 J at 600 W below the limit, or at 100 W below it: 17 ms, or 100."""
    for rest, ready in ((None, 1 / 60), (step(0.1, 500.0, bound="memory"), 0.1)):
        ours = clock()
        first = step(1.0, 900.0)
        end = first.seconds_at(ours.pace(first, 0.0))
        if rest is not None:
            ours.pace(rest, end)
        assert ours.pace(step(0.02, 900.0), end + ready).time == pytest.approx(1.0)


def test_a_clock_that_fell_stays_down_until_all_credit_is_back():
    """Half of the credit is there after 8 ms of idling; a short burst would have it for itself."""
    burst, ours = step(0.01, 900.0), clock()
    slow = clock(credit=0.0).pace(burst, 0.0)
    end = step(1.0, 900.0).seconds_at(ours.pace(step(1.0, 900.0), 0.0))
    assert ours.pace(burst, end + 0.5 / 60) == slow != ClockScaling()
    fresh = clock()  # what was never spent as a whole may be spent in parts
    assert [fresh.pace(burst, start) for start in (0.0, 0.0105, 0.021)] == [ClockScaling()] * 3


def test_a_lower_cap_is_kept_like_the_limit():
    ours, capped = step(0.1, 500.0), clock(credit=0.0)
    assert capped.watts(ours, capped.pace(ours, 0.0, Setting(cap=450.0))) == pytest.approx(450.0, rel=2e-3)


def test_a_locked_clock_holds_whatever_the_power():
    pace = clock().pace(step(0.1, 100.0), 0.0, Setting(clock=1.5e9))
    assert pace.clock == 1.5e9 and pace.time == pytest.approx(2 / 1.5)
    assert pace.energy == pytest.approx(((1 + 0.5**0.5) / 2) ** 2)


shares = st.floats(0, 1)
steps = st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(0, 2000), st.floats(0, 0.5), shares, shares),
                 min_size=1, max_size=20)


@given(steps, st.floats(150, 700))
def test_mean_power_keeps_to_the_limit_wherever_clocks_can(steps, cap):
    """Beyond the credit, no step draws more than its cap that could do with less."""
    ours, now = clock(), 0.0
    for seconds, watts, pause, sms, doing in steps:
        now += pause
        timeline = step(seconds, watts, core=sms * doing, busy=sms * (1 - doing))
        before = ours._credit + (cap - 100.0) * pause
        pace = ours.pace(timeline, now, Setting(cap=cap))
        took = timeline.seconds_at(pace)
        assert 1.0 <= pace.time <= 2.0 and 0.5 - 1e-9 <= pace.energy <= 1.0
        if ours.watts(timeline, ClockScaling(2.0, 0.5, 0.25)) <= cap:  # at the lowest clock
            drawn = 100.0 * took + timeline.joules_at(pace)
            assert drawn <= cap * took + min(10.0, before) + 0.01 * drawn + 1e-6
        now += took


def test_a_clock_keeps_no_more_paces_than_so_many(monkeypatch):
    """A governor may set ever new clocks; what it comes to is the same as for a clock that was never asked before."""
    monkeypatch.setattr("ksim.cost.energy.MOST_RUNGS", 16)
    asked, hot = clock(credit=0.0), step(0.01, 2000.0)
    for megahertz in range(1500, 1530):
        setting = Setting(clock=1e6 * megahertz)
        assert asked.pace(hot, 0.0, setting) == clock(credit=0.0).pace(hot, 0.0, setting)
        assert len(asked._rungs) <= 16
