"""Spans as columns say what the spans say, and lanes add up to them."""

import pytest
from attrs import evolve

from ksim.flow.filled import Filled, Fills
from ksim.flow.step_block import Lanes
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock, StepCost

ONE = KernelCost.of("a", "attention", 1e-3, 2.0, 3.0, 4.0, "compute", 5.0, 0.5, "", "shape", "split", "measured", 1.5, 8e-4,
           2e-3, True, 0.3, 0.2)
OTHER = evolve(ONE, seconds=2e-3, bound="memory", launch="whole", shape="another", extrapolated=False)


def test_columns_give_back_the_spans_that_they_were_made_of():
    filled = Filled.of([ONE, OTHER, ONE], 3, [0, 2, 5])
    assert [filled.span(place) for place in range(len(filled))] == [ONE, OTHER, ONE]
    assert filled.clocked.tolist() == [True, False, True]


def test_fills_of_a_step_are_those_that_it_has():
    fills = Fills([Filled.of([ONE, OTHER], 3, [0, 2]), Filled.of([OTHER], 1, [2])], 3)
    assert list(fills) == [(ONE,), (), (OTHER, OTHER)]
    assert fills[-1] == fills[2] and fills[1:] == [(), (OTHER, OTHER)]
    with pytest.raises(IndexError):
        fills[3]


def test_fills_of_timelines_come_as_columns_with_how_often_they_run():
    laps = (PricedBlock.of((ONE, 1), 3), PricedBlock.of((0, 1), 2))
    others = (PricedBlock.of((0,), 7),)
    timelines = [StepCost.of(laps, (ONE, OTHER)), StepCost.of(others, (OTHER,)), StepCost.of(laps, (OTHER, ONE))]
    lanes = Lanes.of(timelines)
    assert [(each.repeat, each.rows.tolist()) for each in lanes.filled] == [(2, [0, 2]), (7, [1]), (5, [0, 2])]
    assert [tuple(span for span in fills) for fills in Fills(lanes.filled, 3)] == [each.batch_kernels for each in timelines]
    for name in ("seconds", "joules", "flops", "bytes", "core_joules", "busy_joules"):
        in_laps = sum(lap.repeat * getattr(span, name) for laps in lanes.blocks for lap in laps for span in lap.spans
                      if isinstance(span, KernelCost))
        in_fills = sum(each.repeat * getattr(each, name).sum() for each in lanes.filled)
        assert getattr(lanes, name).sum() == pytest.approx(in_laps + in_fills)
