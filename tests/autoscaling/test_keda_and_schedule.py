"""KEDA to zero and back, the clock's autoscaler, and one of one's own in ten lines."""

from math import ceil

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from ksim.autoscaling import Decision, Observation, PoolView, ReplicaView
from ksim.autoscaling.schedule import Cron
from ksim.autoscaling.signals import Query
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.properties import examples

HELD = {"type": "prometheus", "metadata": {"query": "sum(inference_extension_flow_control_queue_size)",
                                           "threshold": "10"}}


def keda(**options):
    return plugin("autoscaling", Choice("keda", {"triggers": [HELD], **options}))


def play(scaler, held_by_time, replicas, until):
    """The replicas after each look, by its time; all are ready at once."""
    found = {}
    for now in range(0, until + 1, int(scaler.interval)):
        held = next(held for since, held in reversed(held_by_time) if since <= now)
        seen = Observation(now, {"pool": PoolView(replicas, [ReplicaView()] * replicas)}, held)
        decision = scaler.decide(seen)
        replicas = decision.replicas["pool"] if decision else replicas
        found[now] = replicas
    return found


def test_from_zero_to_one_first_and_back_after_the_cooldown():
    found = play(keda(), [(0, 0), (60, 200), (120, 0)], 0, 600)
    assert found[45] == 0 and found[60] == 1, "a poll every 30 s raises to 1"
    assert found[75] == 4 and found[90] == 8 and found[105] == 16 and found[120] == 20, "the HPA does the rest"
    # Active at 90 for the last time: at 390 it is 300 s ago, which is not more than the cool-down.
    assert found[390] == 20 and found[420] == 0


@pytest.mark.parametrize(("query", "value"), [
    ("llm_d_epp_request_running", 12.0), ("sum(inference_objective_running_requests)", 12.0),
    ("llm_d_epp_flow_control_queue_size", 7.0), ("llm_d_epp_flow_control_pool_saturation", 0.75)])
def test_gauges_of_llm_ds_gateway(query, value):
    """Saturation is the mean of engines' larger share: 2 of 5 that wait and 0.8 of a full 0.8, then 0.4 of 0.8."""
    pool = PoolView(2, [ReplicaView(running=4, waiting=2, kv_usage=0.8), ReplicaView(running=6, kv_usage=0.4)])
    assert Query.of(query).read(pool, 7) == pytest.approx(value)
    assert Query.of("llm_d_epp_flow_control_pool_saturation").read(PoolView(0), 0) == 1.0


def test_an_idle_count_of_zero_below_a_minimum():
    found = play(keda(minReplicaCount=3, idleReplicaCount=0, cooldownPeriod=60), [(0, 0), (30, 5), (60, 0)], 0, 180)
    assert found[0] == 0 and found[30] == 3 and found[90] == 3 and found[120] == 0


def test_a_fallback_after_failures():
    """Without engines, a query that does not ignore that fails; the HPA is told what makes it ask for so many."""
    trigger = {"type": "prometheus", "metadata": {"query": "sum(vllm:num_requests_waiting)", "threshold": 5,
                                                  "ignoreNullValues": "false"}}
    scaler = keda(triggers=[trigger], minReplicaCount=1, fallback={"failureThreshold": 1, "replicas": 4})
    found = []
    for now in (0, 15, 30, 45):
        decision = scaler.decide(Observation(now, {"pool": PoolView(2, starting=2)}))
        found.append(decision and decision.replicas["pool"])
    assert found == [None, 4, 4, 4]


@pytest.mark.parametrize(("options", "said"), [
    ({"minReplicaCount": 5, "maxReplicaCount": 4}, "minReplicaCount 5 is above maxReplicaCount 4"),
    ({"idleReplicaCount": 2, "minReplicaCount": 2}, "must be below minReplicaCount"),
    ({"idleReplicaCount": 1, "minReplicaCount": 2}, "only 0 does"),
    ({"coolDownPeriod": 1}, "coolDownPeriod"),
    ({"triggers": []}, "triggers"),
    ({"triggers": [{"type": "prometheus", "metadata": {"query": "x(y)", "threshold": 1}}]}, "is not simulated"),
    ({"triggers": [{"type": "prometheus", "metadata": {"query": "sum(nobody)", "threshold": 1}}]}, "nobody gives"),
    ({"triggers": [{"type": "prometheus", "metadata": {"query": "num_requests_waiting", "threshold": 1}}]},
     "write sum(num_requests_waiting)"),
    ({"triggers": [{"type": "prometheus", "metadata": {"query": "sum(num_requests_waiting)"}}]}, "threshold"),
    ({"triggers": [{"type": "prometheus", "metadata": {"query": "sum(num_requests_waiting)", "treshold": 1}}]},
     "treshold"),
    ({"fallback": {"failureThreshold": 1, "replicas": 1, "behavior": "dynamic"}}, "behavior"),
])
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError) as error:
        keda(**options)
    assert said in str(error.value)


def test_a_schedule_by_hours_of_weekdays():
    scaler = plugin("autoscaling", Choice("schedule", {
        "replicas": 2, "begins": "fri 07:59",
        "periods": [{"start": "0 8 * * mon-fri", "end": "0 18 * * *", "replicas": 9}]}))
    found = play(scaler, [(0, 0)], 2, 4 * 24 * 3600)
    assert found[0] == 2 and found[60] == 9 and found[10 * 3600] == 9 and found[10 * 3600 + 60] == 2
    assert found[24 * 3600 + 60] == 2, "on Saturday"
    assert found[3 * 24 * 3600 + 60] == 9, "on Monday"


@pytest.mark.parametrize(("text", "said"), [("8 * *", "five fields"), ("60 * * * *", "minute from 0 to 59"),
                                            ("0 8 1 * *", "days of months"), ("0 9-8 * * *", "hour from 0 to 23"),
                                            ("0 8 * * someday", "day of the week"), ("*/0 * * * *", "minute")])
def test_a_wrong_cron_expression_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        Cron.of(text)


@examples(100)
@given(st.integers(0, 59), st.integers(0, 23), st.integers(0, 6))
def test_a_minute_of_the_week_is_due_once(minute, hour, day):
    assert Cron.of(f"{minute} {hour} * * {day}").minutes == (day * 1440 + hour * 60 + minute,)


@define
class ByQueue:
    interval: float = 15.0

    def decide(self, seen):
        wanted = {name: max(1, ceil(pool.total("waiting") / 10)) for name, pool in seen.pools.items()}
        return Decision(wanted, "a replica for each 10 requests that wait")


def test_one_of_ones_own_is_ten_lines():
    scaler = plugin("autoscaling", Choice(f"{__name__}:ByQueue", {"interval": 30.0}))
    seen = Observation(0, {"pool": PoolView(1, [ReplicaView(waiting=25)])})
    assert scaler.interval == 30.0 and scaler.decide(seen).replicas == {"pool": 3}
