import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.views.insights import summary_insights
from ksim.views.result import Result
from tests.properties import examples
from tests.results import by_hand, fabricate, fleet


def texts(result: Result) -> str:
    return "\n".join(insight.text for insight in result.insights)


def test_bounds_of_decodes_and_of_prompts():
    found = texts(Result(fabricate.log(count=30, preempt_every=0)))
    assert "Decode steps are memory-bound for 97 %" in found
    assert "Steps with prompt tokens are compute-bound" in found


def test_an_overloaded_run_warns_first():
    first, *_ = Result(fabricate.log(count=150, rate=60, seats=2)).insights
    assert first.warning and first.text.startswith("The queue kept growing")


def test_waiting_and_idling_are_told():
    found = texts(Result(by_hand.small()))
    assert "The GPUs wait for the CPU 33 % of the run." in found
    assert "The GPUs have nothing to do 33 % of the run" in found
    assert "The KV cache is never above 3 % full." in found


QUIET = {"saturated": False, "unfinished": 0, "host_share": 0.0, "gpu_busy_share": 1.0, "steps": 1, "preemptions": 0}


@pytest.mark.parametrize("peak, said", [(0.013, "never above 2 %"), (0.07, "never above 7 %"), (0.0, "never above 0 %"),
                                        (0.951, "up to 96 %"), (1.0, "up to 100 %")])
def test_a_bound_of_the_kv_cache_is_rounded_up(peak, said):
    (told,) = summary_insights({**QUIET, "kv_cache_usage_peak": peak})
    assert f"The KV cache is {said} full" in told.text


@given(st.floats(0, 0.4999) | st.floats(0.95, 1.0))
@examples(60)
def test_no_cache_is_fuller_than_its_bound_says(peak):
    (told,) = summary_insights({**QUIET, "kv_cache_usage_peak": peak})
    assert peak <= int(re.search(r"(\d+) %", told.text)[1]) / 100


def test_a_run_that_kept_up_says_that_its_last_answer_ended_late():
    result = Result(fabricate.log(count=30, rate=60, output=200))
    requests, summary = result.history.requests, result.summary
    late = requests.last_token.max() - requests.arrival[-1]
    assert not summary["saturated"] and summary["request_throughput"] < 0.9 * summary["offered_request_rate"]
    assert f"its last answer ended {late:.2f} s after the last request arrived." in texts(result)
    assert "last answer ended" not in texts(Result(fabricate.log(count=150, rate=60, seats=2)))


def test_preemptions_are_told_with_their_price():
    found = texts(Result(fabricate.log(preempt_every=9)))
    assert "preemptions cost" in found and "never above" not in found


def test_unfinished_requests_are_told():
    assert "1 request was unfinished" in texts(Result(fabricate.cut(by_hand.small(), 3.25)))


def test_pools_that_wait_for_each_other_are_told():
    found = texts(Result(fleet.log(count=60, rate=40)))
    assert "The GPUs of pool prefill have nothing to do 85 % of the run, those of pool decode 26 %: fewer" in found
    assert "KV transfers wait for links: they take 1.59 times as long" in found
    assert "the busiest is NIC of node 1, out" in found
    assert "of their time for room on a decode engine" in found


def test_leases_that_ended_and_requests_that_failed_are_warnings():
    warnings = [insight.text for insight in Result(fleet.log(count=60)).insights if insight.warning]
    assert warnings[0] == "5 requests were ended by an error, most often with: the load failed."
    assert warnings[1].startswith("The leases of 9 requests ended before")
