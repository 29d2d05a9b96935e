"""The HPA: its limits hold whatever its metrics say, and its manifest is refused by name where it is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling import Observation, PoolView, ReplicaView
from ksim.autoscaling.hpa import Controller
from ksim.autoscaling.pod_metrics import Pod, Scale
from ksim.autoscaling.scaling_rules import Behavior, ScalingPolicy, ScalingRules
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, UnknownKey
from tests.properties import examples

WAITING = {"type": "Pods", "pods": {"metric": {"name": "vllm:num_requests_waiting"},
                                    "target": {"type": "AverageValue", "averageValue": "5"}}}
QUEUE = {"type": "External", "external": {"metric": {"name": "igw_queue_depth"},
                                          "target": {"type": "AverageValue", "averageValue": "10"}}}


def hpa(**options):
    return plugin("autoscaling", Choice("hpa", {"maxReplicas": 10, "metrics": [WAITING], **options}))


def seen(now, *waiting, wanted=None, held=0):
    pool = PoolView(len(waiting) if wanted is None else wanted, [ReplicaView(waiting=count) for count in waiting])
    return Observation(now, {"pool": pool}, held)


def test_a_manifest_is_read_as_it_is_written():
    scaler = hpa(minReplicas=2, behavior={
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min",
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]},
        "scaleDown": {"stabilizationWindowSeconds": 60}})
    assert (scaler.interval, scaler.min_replicas, scaler.behavior.scale_up.select_policy) == (15.0, 2, "Min")
    assert scaler.decide(seen(0, 50, 50)).replicas == {"pool": 3}


def test_it_follows_its_metric_and_says_why():
    scaler = hpa()
    assert scaler.decide(seen(0, 5, 5)) is None
    decision = scaler.decide(seen(15, 10, 10))
    assert decision.replicas == {"pool": 4} and "4" in decision.reason
    assert scaler.decide(seen(30, 0, 0, 0, 0)) is None, "the highest wish of 300 s counts"
    assert scaler.decide(seen(316, 0, 0, 0, 0)).replicas == {"pool": 1}


def test_a_queue_at_the_gateway_counts_without_replicas():
    scaler = hpa(minReplicas=0, metrics=[QUEUE])
    assert scaler.decide(seen(0)) is None
    assert scaler.decide(seen(15, held=35)).replicas == {"pool": 4}


@pytest.mark.parametrize(("options", "said"), [
    ({"minReplicas": 11}, "minReplicas 11 is above maxReplicas 10"),
    ({"maxReplica": 3}, "maxReplica"),
    ({"metrics": []}, "metrics"),
    ({"minReplicas": 0}, "needs a metric of type Object or External"),
    ({"behavior": {"scaleup": {}}}, "behavior.scaleup"),
    ({"behavior": {"scaleUp": {"policies": []}}}, "Length of 'policies'"),
    ({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSecond": 1}]}}}, "periodSecond"),
    ({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 3601}}}, "stabilizationWindowSeconds"),
    ({"metrics": [{"type": "Pods"}]}, "type Pods needs pods"),
    ({"metrics": [{"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}, "nobody gives the resource"),
    ({"metrics": [{"type": "Pods", "pods": {"metric": {"name": "queue_lenght"}, "target": {
        "type": "AverageValue", "averageValue": 5}}}]}, "nobody gives the metric 'queue_lenght'"),
    ({"metrics": [{"type": "Pods", "pods": {"metric": {"name": "num_requests_waiting"}, "target": {
        "type": "Value", "value": 5}}}]}, "takes AverageValue"),
    ({"metrics": [{"type": "Pods", "pods": {"metric": {"name": "num_requests_waiting"}, "target": {
        "type": "AverageValue", "value": 5}}}]}, "type AverageValue needs averageValue"),
])
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError) as error:
        hpa(**options)
    assert said in str(error.value)
    assert isinstance(error.value, UnknownKey) == (said in ("maxReplica", "behavior.scaleup", "periodSecond"))


def test_it_scales_one_pool():
    pool = PoolView(1, [ReplicaView()])
    with pytest.raises(ConfigError, match="scales one pool, not 2"):
        hpa().decide(Observation(0, {"a": pool, "b": pool}))


RULES = st.builds(ScalingRules, st.none() | st.integers(0, 300), st.sampled_from(["Max", "Min", "Disabled"]),
                  st.none() | st.lists(st.builds(ScalingPolicy, st.sampled_from(["Pods", "Percent"]),
                                                 st.integers(1, 200), st.integers(1, 120)), min_size=1, max_size=2))


@examples(300)
@given(st.integers(0, 5), st.integers(0, 20), st.none() | st.builds(Behavior, RULES, RULES), st.integers(0, 40),
       st.lists(st.integers(0, 500), min_size=1, max_size=30))
def test_limits_hold_at_every_step(least, more, behavior, replicas, totals):
    """Minimum and maximum, what is disabled, and that an HPA at 0 is off unless its minimum is 0."""
    most = max(1, least + more)
    controller = Controller(least, most, behavior)
    for step, total in enumerate(totals):
        scale = Scale(replicas, [Pod()] * replicas)
        after = controller.reconcile(scale, [lambda scale, total=total: scale.of_average(total, 10)], 15.0 * step)
        if replicas == 0 and least:
            assert after.replicas == 0
        else:
            assert least <= after.replicas <= most
            inside = least <= replicas <= most
            rules = behavior or Behavior()
            assert not (inside and after.replicas > replicas and rules.scale_up.select_policy == "Disabled")
            assert not (inside and after.replicas < replicas and rules.scale_down.select_policy == "Disabled")
        replicas = after.replicas


@examples(200)
@given(st.integers(1, 50), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 1000))
def test_more_load_never_asks_for_fewer_replicas(replicas, one, other, target):
    scale = Scale(replicas, [Pod()] * replicas)
    low, high = sorted((one, other))
    for wish in (scale.of_average, scale.of_value):
        assert wish(low, target).replicas <= wish(high, target).replicas
