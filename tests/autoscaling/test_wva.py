"""llm-d's autoscaler in a fleet, its model of queues, and the ends of pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling import Observation, PoolView, ReplicaView
from ksim.autoscaling.kubernetes import DisruptionBudget, RollingUpdate, Termination
from ksim.autoscaling.queue_model import BatchTimes, QueueModel, QueueTarget, TargetTooTight
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.specs.pools import DisruptionBudgetSettings
from tests.properties import examples


def wva(**options):
    return plugin("autoscaling", Choice("wva", options))


def pool(count, usage, waiting=0, **more):
    return PoolView(count, [ReplicaView(kv_usage=usage, waiting=waiting, kv_tokens=400_000)] * count, **more)


def test_the_cheapest_goes_up_and_the_dearest_down():
    scaler = wva(costs={"big": 40.0, "small": 15.0})
    busy = {"big": pool(2, 0.75, 3), "small": pool(2, 0.75, 3)}
    assert scaler.decide(Observation(0.0, busy)).replicas == {"small": 3}
    # What it wants is not there yet: nothing more is decided.
    coming = PoolView(3, busy["small"].ready, starting=1)
    assert scaler.decide(Observation(60.0, {**busy, "small": coming})) is None
    idle = {"big": pool(2, 0.0), "small": pool(3, 0.0)}
    assert scaler.decide(Observation(120.0, idle)).replicas == {"big": 1}


def test_tokens_bring_many_at_once():
    scaler = wva(analyzerName="saturation")
    seen = {"pool": pool(2, 0.78, 4, input_tokens=40_000.0, output_tokens=200.0)}
    decision = scaler.decide(Observation(0.0, seen))
    assert decision.replicas == {"pool": 4} and "lacking" in decision.reason


def test_a_queue_model_sizes_for_a_rate():
    scaler = wva(analyzerName="queue", alpha=8.0, beta=0.03, gamma=4e-5, ttft=500.0, itl=25.0, maxBatchSize=64)
    seen = {"pool": pool(1, 0.5, arrivals=600, input_tokens=512.0, output_tokens=2000.0)}
    assert scaler.decide(Observation(0.0, seen)).replicas == {"pool": 6}, "10 requests/s at 1.946 for each"


def test_an_hpa_follows_what_is_desired_at_its_own_pace():
    """It is asked every 15 s, and what is desired every 60: a policy lets one replica more come in 30 s."""
    up = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}
    down = {"stabilizationWindowSeconds": 120}
    scaler = wva(analyzerName="saturation", maxReplicas=5, behavior={"scaleUp": up, "scaleDown": down})
    assert scaler.interval == 15.0
    ready, sizes = 2, []
    for moment in range(0, 300, 15):
        usage = 0.78 if moment < 60 else 0.1
        decision = scaler.decide(Observation(float(moment), {"pool": pool(
            ready, usage, 4 if moment < 60 else 0, input_tokens=40_000.0, output_tokens=200.0)}))
        ready = decision.replicas["pool"] if decision else ready
        sizes.append(ready)
    assert sizes[:4] == [3, 3, 4, 4], "4 are desired from the first look on"
    assert sizes[4:9] == [4] * 5 and sizes[-1] == 1, "down after its window"


@pytest.mark.parametrize(("options", "said"), [
    ({"maxReplicas": 3}, "behavior and maxReplicas"), ({"behavior": {}}, "behavior and maxReplicas"),
    ({"behavior": {}, "minReplicas": 4, "maxReplicas": 3}, "minReplicas 4 is above"),
    ({"kvCacheTreshold": 0.8}, "kvCacheTreshold"), ({"kvSpareTrigger": 0.9}, "kvSpareTrigger 0.9 must be below"),
    ({"scaleDownBoundary": 0.9}, "scaleDownBoundary 0.9 must be below"), ({"analyzerName": "queue"}, "needs alpha"),
    ({"analyzerName": "v3"}, "analyzerName"), ({"interval": "0 s"}, "interval")])
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        wva(**options)


def test_costs_are_of_pools_that_there_are():
    with pytest.raises(ConfigError, match="there is no pool 'big'"):
        wva(costs={"big": 1.0}).decide(Observation(0.0, {"small": pool(1, 0.5)}))


@examples(60)
@given(st.floats(1, 50), st.floats(0, 0.2), st.integers(0, 4000), st.integers(1, 2000), st.integers(1, 64),
       st.integers(0, 200), st.floats(0.05, 0.99))
def test_the_queue_conserves_requests(alpha, beta, prompt, output, batch, room, share):
    """Little's law: what is present is the throughput times the time of a request."""
    model = QueueModel(BatchTimes(alpha, beta, 1e-5, prompt, output), batch, room)
    at = model.at(share * model.most)
    assert at.throughput <= share * model.most * (1 + 1e-9)
    assert at.in_service == pytest.approx(at.throughput * (at.response - at.wait) / 1000, rel=1e-6)
    assert 0 < at.utilization <= 1 and at.wait >= 0


def test_a_target_below_an_empty_system_is_too_tight():
    model = QueueModel(BatchTimes(8.0, 0.03, 4e-5, 2048, 256), 64, 640)
    with pytest.raises(TargetTooTight):
        model.sized(QueueTarget(ttft=10.0))


# The ends of pods.

SHARES = st.integers(0, 30) | st.integers(0, 100).map(lambda share: f"{share}%")


@given(st.integers(0, 30), SHARES, SHARES)
def test_a_rolling_update_always_moves_and_keeps_its_bounds(replicas, surge, unavailable):
    update = RollingUpdate(replicas, surge, unavailable)
    assert update.surge + update.unavailable > 0 or replicas == 0
    assert 0 <= update.least_available <= replicas <= update.most_pods


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 30))
def test_the_forms_of_a_disruption_budget_round_against_each_other(replicas, share, healthy):
    least = DisruptionBudget(replicas, DisruptionBudgetSettings(min_available=f"{100 - share}%"))
    most = DisruptionBudget(replicas, DisruptionBudgetSettings(max_unavailable=f"{share}%"))
    # Both round up, so one keeps what the other lets go.
    assert most.desired_healthy <= least.desired_healthy <= most.desired_healthy + 1
    assert 0 <= least.evictions(healthy) <= most.evictions(healthy) <= healthy


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_pod_ends_within_its_grace_or_soon_after(grace, pre_stop, drain):
    end = Termination(grace, pre_stop, drain)
    assert end.gone <= max(grace + 2, 0) and (end.sigterm is None) == (grace == 0)
    assert end.killed == (end.gone < (end.sigterm or 0) + drain)


@pytest.mark.parametrize("value", ["25", "x%", -1, True, 1.5])
def test_a_count_of_pods_is_a_number_or_a_percentage(value):
    with pytest.raises(ConfigError, match="neither a number of pods nor a percentage"):
        assert RollingUpdate(4, value).surge
