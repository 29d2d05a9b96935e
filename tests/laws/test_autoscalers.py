"""Laws that hold for every autoscaler: it answers for the pools that it sees, in whole replicas, and says why; equal
observations have equal answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling import Load, Observation, PoolView, ReplicaView
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from tests.properties import examples

WAITING = {"type": "Pods", "pods": {"metric": {"name": "num_requests_waiting"},
                                    "target": {"type": "AverageValue", "averageValue": 5}}}
TRIGGER = {"type": "prometheus", "metadata": {"query": "sum(num_requests_waiting)", "threshold": 5}}
PROFILE = {"prefill": {"prefill_isl": [100, 500, 1000, 2000, 4000, 8000],
                       "prefill_ttft": [17, 37, 63, 116, 228, 476],
                       "prefill_thpt_per_gpu": [5879, 13423, 15873, 17241, 17544, 16807]},
           "decode": {"x_kv_usage": [0.1, 0.5, 1.0] * 3, "y_context_length": [500] * 3 + [4000] * 3 + [16000] * 3,
                      "z_itl": [14, 36, 64, 10, 18, 29, 9, 16, 25], "max_kv_tokens": 400_000,
                      "z_thpt_per_gpu": [5883, 11111, 12500, 990, 2703, 3448, 213, 737, 990]}}
#: Options of each, and the pools that it scales.
OPTIONS = {
    "dynamo_planner": ({"optimization_target": "sla", "enable_load_scaling": True, "load_predictor": "kalman",
                        "throughput_adjustment_interval_seconds": 20, "max_gpu_budget": 30}, ("prefill", "decode")),
    "dynamo_planner_09": ({"profile": PROFILE, "load_predictor": "kalman", "max_gpu_budget": 30},
                          ("prefill", "decode")),
    "hpa": ({"maxReplicas": 20, "metrics": [WAITING], "behavior": {}}, ("pool",)),
    "keda": ({"triggers": [TRIGGER], "maxReplicaCount": 20}, ("pool",)),
    "perfect": ({"sizes": {"a": [[0.0, 2], [30.0, 9]], "b": [[5.0, 1]]}, "interval": "5 s"}, ("a", "b")),
    "schedule": ({"replicas": 3, "periods": [{"start": "0 8 * * *", "end": "0 18 * * *", "replicas": 9}]}, ("a", "b")),
    "wva": ({"analyzerName": "saturation"}, ("a", "b")),
}
REPLICAS = st.builds(ReplicaView, running=st.integers(0, 50), waiting=st.integers(0, 50), kv_usage=st.floats(0, 1),
                     kv_tokens=st.just(100_000), load=st.builds(
                         Load, queued_prefill_tokens=st.integers(0, 20_000), prefill_tokens=st.integers(0, 8192),
                         prefill_requests=st.integers(0, 3), decode_requests=st.integers(0, 64),
                         decode_kv=st.integers(0, 90_000), wall=st.floats(0.001, 0.5)))
POOLS = st.builds(PoolView, wanted=st.integers(0, 10), ready=st.lists(REPLICAS, max_size=4),
                  starting=st.integers(0, 2), draining=st.integers(0, 1), arrivals=st.integers(0, 500),
                  input_tokens=st.floats(1, 8000), output_tokens=st.floats(1, 2000), ttft=st.floats(0.001, 5),
                  itl=st.floats(0.001, 0.2), hit_rate=st.none() | st.floats(0, 1))


def test_every_autoscaler_is_tried():
    assert sorted(OPTIONS) == catalog.names("autoscaling")


@pytest.mark.parametrize("name", sorted(OPTIONS))
@examples(60)
@given(data=st.data())
def test_decisions_are_of_pools_that_are_seen_and_are_made_again(name, data):
    if name == "dynamo_planner_09":
        pytest.importorskip("scipy", reason="profiles are interpolated by scipy")
    options, pools = OPTIONS[name]
    one, other = (catalog.plugin("autoscaling", Choice(name, options)) for _ in range(2))
    assert one.interval > 0 and isinstance(one.source, str)
    for step in range(data.draw(st.integers(1, 12))):
        seen = Observation(step * one.interval, {pool: data.draw(POOLS) for pool in pools},
                           data.draw(st.integers(0, 9)))
        decision = one.decide(seen)
        assert decision == other.decide(seen)
        if decision is not None:
            assert decision.reason and decision.replicas.keys() <= seen.pools.keys()
            assert all(isinstance(count, int) and count >= 0 for count in decision.replicas.values())
            assert name in ("schedule", "wva") or sum(decision.replicas.values()) <= 30
