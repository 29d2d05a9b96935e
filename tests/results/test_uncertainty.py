"""Intervals of kernels become intervals of latencies."""

from math import hypot

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Stepped
from ksim.flow.log import Log
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.results.history import History
from ksim.results.metrics import summarise, uncertainty

from . import by_hand, fabricate

# A step runs two GEMMs of 0.1 s (0.08 to 0.12) and two attentions of 0.15 s (0.12 to 0.2).
BELOW, ABOVE = hypot(2 * 0.02, 2 * 0.03), hypot(2 * 0.02, 2 * 0.05)


def test_the_small_log_by_hand():
    found = uncertainty(History(by_hand.small()))
    # Request 7 waits 1.25 s for its first token and request 8 1.125 s, each with one step in it.
    assert found["median_ttft_low_ms"] == pytest.approx(1e3 * ((1.25 + 1.125) / 2 - BELOW))
    assert found["median_ttft_high_ms"] == pytest.approx(1e3 * ((1.25 + 1.125) / 2 + ABOVE))
    # Two steps lie between the first and the last of request 7's three tokens.
    assert found["median_tpot_low_ms"] == pytest.approx(1e3 * (2.25 - 2 * BELOW) / 2)
    assert found["median_tpot_high_ms"] == pytest.approx(1e3 * (2.25 + 2 * ABOVE) / 2)
    assert summarise(History(by_hand.small()))["extrapolated_share"] == pytest.approx(0.3 / 0.5)


def test_without_intervals_nothing_is_claimed():
    found = uncertainty(History(fabricate.log()))
    assert found["median_ttft_low_ms"] is None
    assert summarise(History(fabricate.log()))["extrapolated_share"] == 0.0


def test_a_run_without_steps_has_no_intervals():
    found = uncertainty(History(Log()))
    assert set(found.values()) == {None}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1e-6, 1), st.floats(0, 1), st.floats(1, 3),
                          st.integers(1, 9)), min_size=1, max_size=12))
def test_families_err_apart_and_their_kernels_together(rows):
    laps = [PricedBlock.of((KernelCost.of("x", family, seconds, low=seconds * low, high=seconds * high),), repeat)
            for family, seconds, low, high, repeat in rows]
    whole = StepCost.of(laps)
    off = whole.seconds - whole.low
    each = [sum(runs * (span.seconds - span.low) for span, runs in whole.counted() if span.family == family)
            for family in {row[0] for row in rows}]
    assert max(each) <= off * (1 + 1e-9) + 1e-15
    assert off <= sum(each) * (1 + 1e-9) + 1e-12
    if len(each) == 1:
        assert off == pytest.approx(each[0])


def test_one_kernel_without_interval_leaves_the_step_without():
    lap = PricedBlock.of((KernelCost.of("x", "gemm", 1.0, low=0.5, high=2.0), KernelCost.of("y", "all_reduce", 1.0)))
    assert np.isnan(StepCost.of([lap]).low)


def test_intervals_of_a_run_grow_with_those_of_its_steps():
    log = by_hand.small()
    def wider_of(step):
        return evolve(step, costs=step.costs.replaced(below=step.seconds, above=9.0 - step.seconds))

    wide = [evolve(event, step_costs=tuple(map(wider_of, event.step_costs)))
            if isinstance(event, Stepped) else event for event in log.events]
    narrow, wider = uncertainty(History(log)), uncertainty(History(Log(log.engines, wide)))
    assert wider["median_ttft_low_ms"] < narrow["median_ttft_low_ms"]
    assert wider["p99_tpot_high_ms"] > narrow["p99_tpot_high_ms"]
