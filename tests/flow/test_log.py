"""A log tells each kind of event in the order of its time, and steps engine by engine, however they came."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow import log as module
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.flow.events import Admitted, Arrived, Finished, LinkUsed, Rejected, StepBlock, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

BLOCKS = (PricedBlock.of((KernelCost.of("a", "gemm", 1e-3), 0)),)


def _step(engine: int, index: int, stages: int = 1) -> Stepped:
    timeline = StepCost.of(BLOCKS, [KernelCost.of("b", "attention", 1e-4 * index)])
    return Stepped(1.0 + index, engine, index, index, index + 0.1, index + 0.2, index + 0.3, index + 0.4,
                   Batch.of((1, index)), 0, 1, 2, (timeline,) * stages, (AT_BOOST,) * stages)


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=30), st.integers(1, 7))
def test_events_of_a_kind_are_told_by_time_and_else_as_they_came(times, block):
    events = [Admitted(time, number, number % 3, 5, 6, again=number % 2 == 0) for number, time in enumerate(times)]
    with mock.patch.object(module, "_BLOCK", block):
        log = Log([], events)
    assert list(log.of(Admitted)) == sorted(events, key=lambda event: event.time)


def test_events_that_come_as_columns_are_told_with_those_that_come_one_by_one():
    log = Log([], [LinkUsed(2.0, 0, 5.0)])
    log.extend(LinkUsed, {"time": np.array([1.0, 2.0]), "link": np.array([4, 3]), "rate": np.array([7.0, 0.0])})
    log.add(LinkUsed(2.0, 1, 6.0))
    assert list(log.of(LinkUsed)) == [LinkUsed(1.0, 4, 7.0), LinkUsed(2.0, 0, 5.0), LinkUsed(2.0, 3, 0.0),
                                      LinkUsed(2.0, 1, 6.0)]


def test_events_come_back_as_they_were():
    request = Request(7, 1.0, 10, 3, session="chat")
    events = [Arrived(1.0, request), Rejected(1.5, 7, "too long"), Finished(2.0, 7, 4), _step(0, 3)]
    log = Log([], events)
    assert log.events == events
    assert [event.request for event in log.of(Arrived)] == [request]
    assert not list(log.of(Admitted)) and len(log.columns(Admitted)["time"]) == 0


@given(st.permutations([(engine, index) for engine in (1, 4) for index in range(4)]), st.data())
def test_steps_come_one_by_one_or_many_at_once(order, data):
    steps = {(engine, index): _step(engine, index, stages=engine) for engine, index in order}
    log = Log()
    for engine in (1, 4):
        if data.draw(st.booleans()):
            log.record(StepBlock.of([steps.pop((engine, 1)), steps.pop((engine, 2))]))
    for step in steps.values():
        log.add(step)
    expected = [_step(engine, index, stages=engine) for engine in (1, 4) for index in range(4)]
    assert list(log.of(Stepped)) == expected


def test_steps_of_a_log_may_grow_after_it_was_read():
    log = Log([], [_step(0, 1)])
    assert len(list(log.of(Stepped))) == 1
    log.add(_step(0, 0))
    assert [step.index for step in log.of(Stepped)] == [0, 1]
