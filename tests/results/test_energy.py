import numpy as np
import pytest
from attrs import evolve
from hypothesis import given

from ksim.flow.log import Log
from ksim.views.result import Result
from tests.properties import examples

from . import by_hand, fabricate
from .strategies import logs

#: What the requests of the small log take to their first token, and the first of them after it.
FIRST, SECOND, AFTER = 160.0, 60 * 20 / 21 + 100 * 20 / 31, 160 + 60 / 21 + 100 * 11 / 31


def test_energy_of_the_small_log():
    summary = Result(by_hand.small()).summary
    whole = [FIRST + AFTER, SECOND]
    expected = {
        "energy_joules": 1080.0, "idle_energy_joules": 600.0, "unattributed_energy_joules": 0.0,
        "prefill_energy_joules": FIRST + SECOND, "decode_energy_joules": AFTER,
        "mean_energy_to_first_token_joules": (FIRST + SECOND) / 2,
        "p90_energy_to_first_token_joules": np.percentile([FIRST, SECOND], 90),
        # The request of one token has none after it.
        "median_energy_per_output_token_joules": AFTER / 2, "p99_energy_per_output_token_joules": AFTER / 2,
        "mean_energy_per_request_joules": sum(whole) / 2, "p99_energy_per_request_joules": np.percentile(whole, 99),
        "sessions": 1, "mean_energy_per_session_joules": FIRST + AFTER, "p90_energy_per_session_joules": FIRST + AFTER,
    }
    assert {key: summary[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    assert summary["energy_joules_low"] is summary["energy_joules_high"] is None


def test_sleeping_gpus_save_static_energy_alone():
    awake, asleep = Result(by_hand.small()).summary, Result(by_hand.sleepy()).summary
    assert asleep["static_energy_joules"] == pytest.approx(900 - 2.0 * 2 * 60)
    assert asleep["idle_energy_joules"] == pytest.approx(awake["idle_energy_joules"] - 240)
    for key in ("dynamic_energy_joules", "mean_energy_per_request_joules", "prefill_energy_joules"):
        assert asleep[key] == awake[key]


def test_the_interval_is_that_of_dynamic_energy():
    summary = Result(by_hand.sleepy()).summary
    assert (summary["energy_joules_low"], summary["energy_joules_high"]) == pytest.approx((822.0, 858.0))


def test_requests_of_a_run_cut_short_leave_joules_that_are_nobodys():
    cut = fabricate.cut(by_hand.small(), 3.25)
    result = Result(cut)
    assert result.requests["joules"].to_pylist() == pytest.approx([None, SECOND, None])
    assert result.summary["unattributed_energy_joules"] == pytest.approx(2 * 160 - SECOND)


def test_one_session_is_all_its_requests():
    result = Result(fabricate.log(count=30, engines=2))
    rows = [row for row in result.requests.to_pylist() if row["session"] and row["joules"] is not None]
    sums = {name: sum(row["joules"] for row in rows if row["session"] == name) for name in {r["session"] for r in rows}}
    assert result.summary["sessions"] == len(sums) > 3
    assert result.summary["mean_energy_per_session_joules"] == pytest.approx(np.mean(list(sums.values())))
    assert result.summary["p90_energy_per_session_joules"] == pytest.approx(np.percentile(list(sums.values()), 90))


def test_twice_the_joules_of_kernels_are_twice_the_dynamic_joules_of_all():
    """Static power is apart: without any, what requests take grows with their kernels' joules."""
    def without_static(log: Log) -> Log:
        return Log([evolve(built, static_watts=0.0) for built in log.engines], log.events)

    log = fabricate.log(count=20, ranks=2, stages=2)
    dynamic, both = Result(without_static(log)), Result(log)
    static = both.energy.static.sum()
    assert np.nansum(dynamic.energy.requests) == pytest.approx(dynamic.summary["dynamic_energy_joules"])
    assert np.nansum(both.energy.requests) == pytest.approx(np.nansum(dynamic.energy.requests) + static)


@examples(25)
@given(logs())
def test_every_joule_is_some_requests_or_nobodys(log):
    result = Result(log)
    summary, spent = result.summary, result.energy
    whole = pytest.approx(summary["energy_joules"], rel=1e-9)
    attributed = float(np.nansum(spent.requests))
    assert attributed + summary["unattributed_energy_joules"] + summary["idle_energy_joules"] == whole
    assert sum(summary[f"{part}_energy_joules"] for part in ("prefill", "decode", "idle")) == whole
    parts = [summary[f"{part}_energy_joules"] for part in ("prefill", "decode", "idle", "unattributed")]
    assert min(parts) >= -1e-9 * summary["energy_joules"] and not (spent.requests < 0).any()
    if not summary["unfinished"]:
        assert summary["unattributed_energy_joules"] == pytest.approx(0.0, abs=1e-9 * summary["energy_joules"])


@pytest.mark.parametrize("log", [Log(), Log([by_hand.ENGINE]), fabricate.cut(by_hand.small(), 1.0)])
def test_a_run_in_which_nothing_happened_says_nothing_of_requests(log):
    summary = Result(log).summary
    assert summary["prefill_energy_joules"] == summary["decode_energy_joules"] == summary["sessions"] == 0
    assert summary["mean_energy_per_request_joules"] is summary["p90_energy_per_session_joules"] is None
