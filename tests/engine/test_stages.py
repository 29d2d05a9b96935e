"""Pipeline stages of 10 s and 20 s, played whole and by ranks that are processes."""

import pytest
import simpy

from ksim.engine.rank_stages import RankStages
from ksim.engine.ranks import LaunchTimes, WholeSteps
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from tests.engine.by_hand import timeline
from tests.engine.ranks_by_hand import NoCollectives, Pace, Ranks

#: The first stage is one kernel, the second two.
BATCH = (timeline(10.0), timeline(15.0, 5.0))
#: Inputs and launches that nobody waits for.
AT_ONCE = [LaunchTimes(0.0, 0.0)] * 2


def whole(env):
    return WholeSteps(env, stages=2)


def by_ranks(env, ranks=1, paces=()):
    stages = [Ranks.of([[1.0] * ranks], paces, number, env=env).stage for number in range(2)]
    return RankStages(env, 0, stages, [NoCollectives()] * 2)


def by_two_ranks(env):
    return by_ranks(env, 2)


each_detail = pytest.mark.parametrize("detail", [whole, by_ranks, by_two_ranks])


@each_detail
def test_a_batch_goes_through_all_stages(detail):
    env = simpy.Environment()
    in_flight = detail(env).launch(BATCH, AT_ONCE)
    env.run(in_flight.done)
    assert (in_flight.start, in_flight.end, env.now) == (0, 30, 30)


@each_detail
def test_a_batch_enters_a_stage_when_the_one_before_has_left_it(detail):
    """The second is through stage 0 at 20, and waits for stage 1 until 30."""
    env = simpy.Environment()
    stages = detail(env)
    batches = [stages.launch(BATCH, AT_ONCE) for _ in range(3)]
    env.run(batches[-1].done)
    assert [(in_flight.start, in_flight.end) for in_flight in batches] == [(0, 30), (10, 50), (20, 70)]


@each_detail
def test_a_batch_that_needs_tokens_of_another_waits_for_them(detail):
    env = simpy.Environment()
    stages = detail(env)
    first = stages.launch(BATCH, AT_ONCE)
    second = stages.launch(BATCH, AT_ONCE, source=first)
    env.run(second.done)
    assert (second.start, second.end) == (30, 60)


@each_detail
def test_tokens_that_are_there_already_are_not_waited_for(detail):
    env = simpy.Environment()
    stages = detail(env)
    first = stages.launch(BATCH, AT_ONCE)
    env.run(100)
    second = stages.launch(BATCH, AT_ONCE, source=first)
    env.run(second.done)
    assert (second.start, second.end) == (100, 130)


@each_detail
def test_a_stage_waits_for_its_inputs_and_for_its_last_launch(detail):
    """Inputs at 3 for the first stage, which is launched at 50; the second has its own at 60, and ends at 80."""
    env = simpy.Environment()
    in_flight = detail(env).launch(BATCH, [LaunchTimes(3.0, 50.0), LaunchTimes(60.0, 61.0)])
    env.run(in_flight.done)
    assert (in_flight.start, in_flight.end) == (3, 80)


@pytest.mark.parametrize("detail", ["step", "rank"])
def test_what_the_clock_paces_takes_as_long_as_the_clock_says(detail):
    """Of 10 s, 4 are clocked: at a pace of 1.5, 12 s."""
    env, pace = simpy.Environment(), ClockScaling(1.5)
    lap = PricedBlock.of((KernelCost.of("a", "gemm", 4.0, bound="compute"), KernelCost.of("b", "gemm", 6.0)))
    stages = (WholeSteps(env, 1, [Pace(pace)]) if detail == "step" else
              RankStages(env, 0, [Ranks.of([[1.0, 1.0]], [pace] * 2, env=env).stage], [NoCollectives()]))
    in_flight = stages.launch([StepCost.of([lap])], [LaunchTimes(0.0, 0.0)])
    env.run(in_flight.done)
    assert (in_flight.end, in_flight.scalings) == (12, (pace,))


def test_a_step_has_the_mean_scaling_of_its_ranks_and_tells_how_long_they_waited():
    """Of 10 s, 4 are clocked: 12 s at 1.5, 10 at 1; a step at the mean pace would take 11."""
    env, paces = simpy.Environment(), [ClockScaling(1.5, 1.0, 1.0, 1e9), ClockScaling(1.0, 1.0, 1.0, 2e9)]
    lap = PricedBlock.of((KernelCost.of("a", "gemm", 4.0, bound="compute"), KernelCost.of("b", "gemm", 6.0)))
    stages = RankStages(env, 0, [Ranks.of([[1.0, 1.0]], paces, env=env).stage], [NoCollectives()])
    in_flight = stages.launch([StepCost.of([lap])], [LaunchTimes(0.0, 0.0)])
    env.run(in_flight.done)
    (scaling,) = in_flight.scalings
    assert (in_flight.end, scaling.time, scaling.clock, in_flight.waits) == (12, 1.25, 1.5e9, (1,))
