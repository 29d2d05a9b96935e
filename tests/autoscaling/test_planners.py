"""Dynamo's planners in a fleet: what they see, what they decide, and what a budget of GPUs never lets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling import EngineLimits, Load, Observation, PoolView, ReplicaView
from ksim.autoscaling.dynamo_engine import EngineModel, LearntPasses, Shape, Target
from ksim.autoscaling.forecasts import Constant, ForecastSettings, Kalman
from ksim.autoscaling.gpu_budget import GpuBudget
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.properties import examples

#: A pass of 5 ms and 0.05 ms a token of prompts, 0.1 ms a request, and 4e-5 ms a token that is read.
PASS = (5e-3, 5e-5, 1e-4, 4e-8)


def load(prompts=0, decodes=0, kv=0, queued=0):
    wall = PASS[0] + PASS[1] * prompts + PASS[2] * decodes + PASS[3] * kv
    return Load(queued_prefill_tokens=queued, queued_prefill_requests=bool(queued), prefill_tokens=prompts,
                prefill_requests=bool(prompts), decode_requests=decodes, decode_kv=kv, wall=wall)


#: Passes of many sizes.
PASSES = [load(prompts, decodes, kv) for prompts in (0, 100, 4000) for decodes, kv in ((0, 0), (9, 400), (1, 7000))]


def planner(**options):
    return plugin("autoscaling", Choice("dynamo_planner", {"load_predictor": "constant", **options}))


def fleet(now, prefill, decode, **traffic):
    """Pools of so many engines, which report passes of several sizes."""
    def pool(count, of):
        return PoolView(count, [ReplicaView(load=of(index)) for index in range(count)], **traffic)

    return Observation(now, {"prefill": pool(prefill, lambda index: load(prompts=1000 + 500 * index + int(now))),
                             "decode": pool(decode, lambda index: load(decodes=8 + index, kv=9000 + int(7 * now)))})


def test_the_slow_loop_learns_passes_and_follows_the_load():
    scaler, counts = planner(optimization_target="sla", max_gpu_budget=64), [1, 1]
    for now in range(0, 185, 5):
        seen = fleet(float(now), *counts, arrivals=100, input_tokens=3000.0, output_tokens=150.0)
        decision = scaler.decide(seen)
        assert decision is None or now == 180, "nothing is decided before a whole interval"
    # 36 looks of 100 requests: 20 requests/s of 3000 tokens, 155 ms each; two at once need 305 ms.
    assert decision.replicas == {"prefill": 4, "decode": 1}
    assert "3600 requests of 3000 and 150 tokens" in decision.reason


def test_the_fast_loop_alone_goes_by_thresholds():
    scaler = planner(max_gpu_budget=8)
    assert scaler.interval == 5.0
    hot = PoolView(2, [ReplicaView(load=load(queued=8000)), ReplicaView(load=load())],
                   limits=EngineLimits(context_length=8000))
    idle = PoolView(2, [ReplicaView(load=load(kv=1)), ReplicaView(load=load())])
    scaler.decide(Observation(0.0, {"prefill": hot, "decode": idle}))
    assert scaler.decide(Observation(5.0, {"prefill": hot, "decode": idle})).replicas == {"prefill": 3, "decode": 1}


@pytest.mark.parametrize(("options", "said"), [
    ({"mode": "both"}, "mode"),
    ({"max_gpu_budget": 4, "min_gpu_budget": 5}, "min_gpu_budget 5 is above max_gpu_budget 4"),
    ({"optimization_target": "sla", "enable_throughput_scaling": False}, "nothing would scale"),
    ({"optimization_target": "load"}, "prefill_scale_up_queue_tokens"),
    ({"optimization_target": "sla", "enable_load_scaling": True, "load_adjustment_interval_seconds": 180}, "below"),
    ({"load_predicter": "constant"}, "load_predicter"),
    ({"load_predictor": "oracle"}, "load_predictor"),
])
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        planner(**options)


def test_a_budget_that_cannot_hold_the_floors_is_refused():
    with pytest.raises(ConfigError, match="4 GPUs cannot hold the fewest replicas, which take 6"):
        planner(max_gpu_budget=4, min_endpoint=3).decide(fleet(0.0, 3, 3))
    with pytest.raises(ConfigError, match="there is no prefill"):
        planner().decide(Observation(0.0, {"a": PoolView(1), "b": PoolView(1)}))


def test_passes_are_learnt_as_they_are():
    model = LearntPasses()
    model.learn(PASSES)
    assert model.seconds(2048, 5, 10_000) == pytest.approx(5e-3 + 2048 * 5e-5 + 5e-4 + 4e-4)
    assert LearntPasses().seconds(1, 1, 1) is None


@examples(60)
@given(st.integers(1, 6000), st.integers(1, 500), st.floats(0.001, 2.0), st.floats(0.001, 0.5))
def test_a_looser_target_never_carries_less(prompt, output, ttft, itl):
    model = LearntPasses()
    model.learn(PASSES)
    engine, shape = EngineModel("aggregated", EngineLimits(8192, 64, 400_000), model), Shape(prompt, output)
    tight, loose = (engine.rate(shape, Target(scale * ttft, scale * itl)) for scale in (1, 2))
    # Unless nothing meets the tight one: then it is given up, and the most of all counts.
    assert tight is None or loose >= tight or engine.rate(shape, Target()) == tight


COUNTS = st.tuples(st.integers(0, 12), st.integers(0, 12))


@examples(400)
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(0, 2), st.integers(0, 2)),
       st.integers(-1, 20), st.integers(-1, 40), COUNTS, COUNTS)
def test_a_budget_keeps_its_limits_and_turns_nothing_round(costs, floors, least, most, current, proposed):
    budget = GpuBudget(costs, floors, least, most)
    final, why = budget.guard(current, proposed)
    if most >= 0 and budget.total(floors) <= most:
        assert budget.total(budget.clamp(proposed)) <= max(most, 0)
    if budget.holds(current):
        assert budget.holds(final) and why in ("", "hold")
        assert all(min(old, new) <= got <= max(old, new)
                   for old, new, got in zip(current, proposed, final, strict=True))
    fitted = budget.fit(current, proposed)
    assert fitted == current or budget.holds(fitted)


@examples(60)
@given(st.lists(st.floats(0, 1e4), max_size=20))
def test_forecasts_are_never_negative_and_leading_zeros_are_not_learnt(values):
    for make in (Constant, Kalman):
        one, other = make(ForecastSettings()), make(ForecastSettings())
        for value in values:
            one.add(value)
        for value in [0.0, float("nan"), *values]:
            other.add(value)
        assert one.next() == other.next() >= 0


def test_kalman_follows_a_ramp():
    forecast = Kalman(ForecastSettings())
    for value in range(100, 2000, 100):
        forecast.add(float(value))
    assert forecast.next() == pytest.approx(2000, rel=0.01)


def test_the_older_planner_needs_a_profile():
    for options, said in [({}, "profile"), ({"profile": {"prefill": {}}}, "the tables prefill and decode"),
                          ({"profile": {"prefill": {"isl": []}, "decode": {}}}, "isl")]:
        with pytest.raises(ConfigError, match=said):
            plugin("autoscaling", Choice("dynamo_planner_09", {"load_predictor": "constant", **options}))


def test_the_fast_loop_by_the_target_goes_on_for_long():
    """It takes prefix hits of the traffic, which the slow loop would take too."""
    scaler = planner(optimization_target="sla", enable_throughput_scaling=False, enable_load_scaling=True)
    decisions = [scaler.decide(fleet(float(now), 1, 1, hit_rate=0.5)) for now in range(0, 400, 5)]
    assert decisions == [None] * len(decisions)
