import attrs
import numpy as np
import pyarrow.compute as pc
import pytest

from ksim.flow.costs import ClockScaling
from ksim.flow.events import Arrived, Emitted, Stepped
from ksim.flow.log import Log
from ksim.results.history import History
from ksim.results.measured import step_table
from ksim.views.result import Result

from . import by_hand, fabricate


def test_requests_of_the_small_log():
    first, second, refused = Result(by_hand.small()).requests.to_pylist()
    assert first == pytest.approx({
        "id": 7, "engine": 4, "arrival_s": 1.0, "prompt_tokens": 10, "output_tokens": 3, "cached_tokens": 4,
        "received_s": 1.0, "queue_s": 0.0, "ttft_s": 1.25, "tpot_s": 1.125, "itl_p50_s": 1.125, "itl_max_s": 1.25,
        "e2e_s": 3.5,
        # GEMMs draw 60 J a step, shared by tokens, attention 100 J, shared by keys; the second request prefills in the
        # second of three steps.
        "joules": 320 + 60 / 21 + 100 * 11 / 31, "joules_to_first_token": 160.0,
        "preemptions": 0, "status": "completed", "reason": None, "session": "chat", "tenant": "", "priority": 0,
    })
    assert (second["queue_s"], second["tpot_s"], second["itl_max_s"], second["priority"]) == (0.125, None, None, 2)
    assert (refused["status"], refused["reason"], refused["engine"]) == ("rejected", "too long", None)
    assert second["joules"] == second["joules_to_first_token"] == pytest.approx(60 * 20 / 21 + 100 * 20 / 31)
    assert all(refused[name] is None for name in ("ttft_s", "received_s", "queue_s", "cached_tokens", "joules"))


def test_steps_of_the_small_log():
    rows = step_table(History(by_hand.small())).to_pylist()
    assert rows[1].pop("launch") == ""
    assert rows[1] == pytest.approx({
        "engine": 4, "step": 1, "scheduled_s": 2.25, "prepared_s": 2.5, "start_s": 2.5, "end_s": 3.0, "taken_s": 3.25,
        "time_s": 3.25, "decodes": 1, "pace": 1.0, "launch_wait_s": 0.0,
        "decode_context_tokens": 10, "prefills": 1, "prefill_tokens": 20, "samples": 2, "waiting": 1, "running": 2,
        "kv_blocks": 3, "flops": 216.0, "bytes": 32.0, "joules": 60.0, "watts": 100 + 60 / 2 / 0.5, "host_gap_s": 0.5,
    })


def test_a_step_says_how_long_it_waited_for_launches_and_at_what_pace_it_ran():
    """The second of half a second of kernels ends after one, and its clocked kernels take twice as long."""
    log = by_hand.small()
    first, step, last = log.of(Stepped)
    slow = attrs.evolve(step, end=step.start + 1.5, scalings=(ClockScaling(2.0),))
    others = [event for event in log.events if not isinstance(event, Stepped)]
    row = step_table(History(Log(log.engines, [first, slow, last, *others]))).to_pylist()[1]
    kernels = step.step_costs[0].seconds + step.step_costs[0].compute_bound
    assert row["pace"] == 2.0 and row["launch_wait_s"] == pytest.approx(1.5 - kernels)


def test_host_gaps_begin_with_the_work_not_with_the_last_step():
    # Nothing is there to do before 1.0; from then on the first request always has work left.
    assert step_table(History(by_hand.small()))["host_gap_s"].to_pylist() == pytest.approx([0.5, 0.5, 0.5])


def test_a_cut_run_has_unfinished_requests():
    table = Result(fabricate.cut(by_hand.small(), 3.25)).requests
    assert table["status"].to_pylist() == ["unfinished", "completed", "rejected"]
    assert table["e2e_s"].to_pylist() == pytest.approx([None, 1.125, None])


def test_a_run_of_tokens_may_leave_steps_out():
    """With several batches in flight, a request's tokens come from every other step."""
    log = by_hand.small()
    events = [attrs.evolve(event, every=2) if isinstance(event, Emitted) else event for event in log.events]
    first, second, _ = Result(Log(log.engines, events)).requests.to_pylist()
    assert (first["output_tokens"], first["ttft_s"], first["tpot_s"]) == (2, 1.25, 2.25)
    assert (second["output_tokens"], second["ttft_s"]) == (1, 1.125)


def test_median_and_largest_gap_are_each_requests_own():
    result = Result(fabricate.log())
    requests = result.history.requests
    for row, values in enumerate(result.requests.to_pylist()):
        gaps = sorted(np.diff(requests.tokens[requests.first[row]: requests.first[row + 1]]).tolist())
        if gaps:
            middle = (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2
            assert (values["itl_p50_s"], values["itl_max_s"]) == pytest.approx((middle, gaps[-1]))


def test_tables_and_summary_agree():
    result = Result(fabricate.log(count=80, engines=2, ranks=2, rate=100, preempt_every=7))
    history, requests, steps, summary = result.history, result.requests, result.steps, result.summary
    assert requests.num_rows == len(history.events[Arrived]["time"])
    assert steps.num_rows == len(history.steps) == summary["steps"]
    assert pc.sum(requests["output_tokens"]).as_py() == summary["generated_tokens"] == pc.sum(steps["samples"]).as_py()
    assert pc.sum(requests["preemptions"]).as_py() == summary["preemptions"] > 0
    assert pc.sum(steps["joules"]).as_py() == pytest.approx(summary["dynamic_energy_joules"])
    assert pc.mean(requests["joules"]).as_py() == pytest.approx(summary["mean_energy_per_request_joules"])
    assert pc.mean(requests["ttft_s"]).as_py() * 1e3 == pytest.approx(summary["mean_ttft_ms"])
