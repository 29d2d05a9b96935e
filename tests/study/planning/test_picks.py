"""What picks among measured runs are worth."""

import pytest

from benchmarks.picks import Measured, same_interactivity, same_load
from benchmarks.research.silicon.rows import Row


def run(name, tensor, ttft, tpot, said, concurrency=8):
    row = Row(id=name, backend="vllm", version="", model_path="Qwen/Qwen3-32B", system="h200_sxm", precision="fp8",
              mode="agg", source="inferencex", group=name, flags="", primary=True, prompt=1024, output=101,
              tensor=tensor, pipeline=1, attention_dp=1, moe_tp=1, moe_ep=1, concurrency=concurrency, ttft=ttft,
              tpot=tpot)
    return Measured(row, tensor, {"it": said})


def test_what_answers_the_fastest_is_not_what_has_the_most_tokens_per_gpu():
    runs = [run("one", 1, 0.1, 0.02, (0.1, 0.02)), run("four", 4, 0.05, 0.01, (0.05, 0.01))]
    assert [pick.share for pick in same_load(runs, "it")] == [1.0]
    assert [pick.share for pick in same_load(runs, "it", of_gpu=True)] == [1.0]
    assert runs[0].rate(runs[0].measured) == pytest.approx(8 * 101 / (0.1 + 100 * 0.02))


def test_a_wrong_pick_has_the_share_of_the_best():
    runs = [run("one", 1, 0.1, 0.02, (0.1, 0.005)), run("four", 4, 0.1, 0.01, (0.1, 0.01))]
    assert [pick.share for pick in same_load(runs, "it")] == [pytest.approx((0.1 + 1.0) / (0.1 + 2.0))]


def test_a_pick_that_misses_the_limit_counts_nothing_unless_noise_may_explain_it():
    """TPOT of 10 and 20 ms; the limits are 12.5, 15 and 17.5 ms, which the second is said to keep."""
    runs = [run("four", 4, 0.1, 0.010, (0.1, 0.010)), run("one", 1, 0.1, 0.020, (0.1, 0.012))]
    strict, noisy = list(same_interactivity(runs, "it")), list(same_interactivity(runs, "it", noise=0.6))
    assert [(pick.share, pick.kept) for pick in strict] == [(0.0, False)] * 3
    assert [(pick.share, pick.kept) for pick in noisy] == [(1.0, True)] * 3


def test_runs_of_one_deployment_leave_no_choice():
    runs = [run("a", 1, 0.1, 0.02, (0.1, 0.02)), run("b", 1, 0.2, 0.03, (0.2, 0.03))]
    assert not [*same_load(runs, "it")] and not [*same_interactivity(runs, "it")]
