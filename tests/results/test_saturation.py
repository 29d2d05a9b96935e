import pytest

from ksim.results.history import History
from ksim.results.series import saturation
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.result import Result

from . import by_hand, fabricate

RATES = [f"sustainable_request_rate{end}" for end in ("_low", "", "_high")]
SHORT = {"prompt": {"kind": "uniform", "low": 50, "high": 400}, "output": {"kind": "uniform", "low": 4, "high": 20}}
LONG = {"prompt": {"kind": "fixed", "value": 7000}, "output": {"kind": "fixed", "value": 20}}


def run(arrivals: dict, count: int = 250, lengths: dict = SHORT, seats: int = 4, seed: int = 0, **workload) -> Result:
    """A toy deployment under load: at most *seats* requests at a time, 2,048 tokens a step."""
    return simulate(Scenario.of({
        "model": "llama-3.2-1b", "gpu": "l4", "oracle": "roofline", "seed": seed,
        "serve": {"max_model_len": 8192, "max_num_seqs": seats, "max_num_batched_tokens": 2048},
        "workload": {"synthetic": {"arrivals": arrivals, "count": count, **lengths}, **workload}}))


def poisson(rate: float) -> dict:
    return {"process": "poisson", "rate": rate}


@pytest.fixture(scope="module")
def capacity() -> float:
    """Requests/s of a run in which all wait from the start."""
    summary = run({"process": "burst"}).summary
    assert summary["saturated"] is False
    return summary["completed"] / summary["duration"]


@pytest.fixture(scope="module")
def overloaded(capacity) -> Result:
    """A run in which twice as many come as can be served."""
    return run(poisson(2.0 * capacity))


@pytest.mark.parametrize(("load", "seed"), [(0.5, 0), (0.8, 1)])
def test_a_load_below_capacity_saturates_nothing(capacity, load, seed):
    result = run(poisson(load * capacity), seed=seed)
    assert result.summary["saturated"] is False
    assert [result.summary[name] for name in RATES] == [None] * 3
    assert " !" not in result.report()


@pytest.mark.parametrize(("load", "seed"), [(1.3, 0), (2.0, 1), (8.0, 0)])
def test_a_load_beyond_capacity_is_told_with_the_rate_that_can_be_sustained(capacity, load, seed):
    """Whatever the load, and however short the run: within 5 % of what the system does with all there at once."""
    result = run(poisson(load * capacity), seed=seed)
    low, rate, high = (result.summary[name] for name in RATES)
    assert result.summary["saturated"] is True
    assert rate == pytest.approx(capacity, rel=0.05) and 0.9 * capacity < low < rate < high < 1.1 * capacity


def test_at_that_rate_or_a_little_less_the_queue_holds(overloaded):
    rate = overloaded.summary["sustainable_request_rate"]
    assert run(poisson(0.85 * rate)).summary["saturated"] is False
    assert run(poisson(1.15 * rate), count=400).summary["saturated"] is True


@pytest.mark.parametrize(("count", "told"), [(150, False), (800, True)])
def test_no_rate_is_told_of_the_first_batch_alone(count, told):
    """With 64 seats, the first requests are served together; a run must be longer to say what is sustained."""
    long = {"prompt": {"kind": "fixed", "value": 200}, "output": {"kind": "uniform", "low": 400, "high": 600}}
    summary = run(poisson(200.0), count, long, seats=64).summary
    assert summary["saturated"] is True and (summary["sustainable_request_rate"] is not None) is told


def test_md1_beyond_its_knee_is_told_the_rate_of_its_server():
    """One customer after another, each as long as the other: the rate is one by that."""
    same = {"prompt": {"kind": "fixed", "value": 100}, "output": {"kind": "fixed", "value": 10}}
    summary = run(poisson(100.0), count=200, lengths=same, seats=1).summary
    alone = run({"process": "burst"}, count=1, lengths=same).summary
    assert summary["saturated"] is True
    # In a queue, nobody waits for the front end between one customer and the next.
    assert summary["sustainable_request_rate"] == pytest.approx(1e3 / alone["mean_e2el_ms"], rel=0.1)
    assert summary["sustainable_request_rate_high"] < 1.05 * summary["sustainable_request_rate"]


def test_few_requests_with_long_prompts_pile_up_too():
    """Five wait, fewer than would be a sign of anything, but with seventeen full steps of prompt tokens."""
    alone = run({"process": "burst"}, count=1, lengths=LONG, seats=64).summary["mean_ttft_ms"] / 1e3
    summary = run({"process": "constant", "rate": 2.0 / alone}, count=11, lengths=LONG, seats=64).summary
    assert summary["waiting_at_last_arrival"] < 8
    assert summary["waiting_tokens_at_last_arrival"] > 8 * 2048
    assert summary["saturated"] is True and summary["sustainable_request_rate"] is None  # of so few


def test_a_closed_loop_is_never_saturated(capacity):
    """Clients that wait for their answers, more of them than there are seats, however fast they would ask."""
    for concurrency in (8, 300):
        result = run(poisson(3.0 * capacity), count=150, max_concurrency=concurrency)
        assert result.summary["saturated"] is False
        assert not any("kept growing" in insight.text for insight in result.insights)


def test_the_report_marks_what_depends_on_the_length_of_the_run(overloaded):
    result = overloaded
    lines = {line.strip()[:21].strip(): line for line in result.report().splitlines()}
    assert {"Time to first token !", "Arrival to last token", "In the queue !", "Time per output token"} <= lines.keys()
    assert "! grows with the length of the run" in result.report()
    warning, *_ = result.insights
    assert f"which is about {result.summary['sustainable_request_rate']:.1f} requests/s" in warning.text
    assert "TTFT, the queue and E2EL grow with the length of the run" in warning.text


def test_nothing_is_made_up_where_nothing_arrived():
    found = saturation(History(fabricate.cut(by_hand.small(), 0.5)))
    assert found == {"waiting_at_last_arrival": 0, "waiting_tokens_at_last_arrival": 0, "saturated": False,
                     **dict.fromkeys(RATES)}


@pytest.mark.parametrize(("rate", "seats", "saturated"), [(12.0, 64, False), (60.0, 2, True), (10.0, 2, False)])
def test_a_queue_that_only_grows_is_noticed(rate, seats, saturated):
    found = saturation(History(fabricate.log(count=150, rate=rate, seats=seats, preempt_every=0)))
    assert found["saturated"] is saturated


def test_requests_that_all_come_at_once_wait_by_design():
    found = saturation(History(fabricate.log(count=100, rate=1e6, seats=4)))
    assert found["waiting_at_last_arrival"] > 50
    assert found["saturated"] is False
