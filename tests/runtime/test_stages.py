"""Pipeline stages of 10 s and 20 s, played whole and kernel by kernel."""

import pytest
import simpy

from ksim.runtime.ranks import Gang
from ksim.runtime.stages import KernelByKernel, WholeSteps
from tests.runtime.by_hand import timeline

#: The first stage is one kernel, the second two.
BATCH = (timeline(10.0), timeline(15.0, 5.0))


def whole(env):
    return WholeSteps(env, stages=2)


def kernel_by_kernel(env):
    return KernelByKernel(env, [Gang(env, None, [stage], {}) for stage in range(2)])


each_detail = pytest.mark.parametrize("detail", [whole, kernel_by_kernel])


@each_detail
def test_a_batch_goes_through_all_stages(detail):
    env = simpy.Environment()
    flight = detail(env).launch(BATCH)
    env.run(flight.done)
    assert (flight.start, flight.end, env.now) == (0, 30, 30)


@each_detail
def test_a_batch_enters_a_stage_when_the_one_before_has_left_it(detail):
    """The second is through stage 0 at 20, and waits for stage 1 until 30."""
    env = simpy.Environment()
    stages = detail(env)
    flights = [stages.launch(BATCH) for _ in range(3)]
    env.run(flights[-1].done)
    assert [(flight.start, flight.end) for flight in flights] == [(0, 30), (10, 50), (20, 70)]


@each_detail
def test_a_batch_that_needs_tokens_of_another_waits_for_them(detail):
    env = simpy.Environment()
    stages = detail(env)
    first = stages.launch(BATCH)
    second = stages.launch(BATCH, source=first)
    env.run(second.done)
    assert (second.start, second.end) == (30, 60)


@each_detail
def test_tokens_that_are_there_already_are_not_waited_for(detail):
    env = simpy.Environment()
    stages = detail(env)
    first = stages.launch(BATCH)
    env.run(100)
    second = stages.launch(BATCH, source=first)
    env.run(second.done)
    assert (second.start, second.end) == (100, 130)
