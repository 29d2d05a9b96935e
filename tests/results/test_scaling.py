"""The numbers and the tables of fleets whose replicas come and go, against figures worked out by hand."""

from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Scaled
from ksim.flow.log import Log
from ksim.results.history import absent, allocated_gpu_seconds
from ksim.results.scaling import FleetSizes, allocation, decisions, replica_table, scaling_rows, windows
from tests.results import by_hand

SEEN = {"ready": 1, "starting": 0, "draining": 0, "running": 27.0, "waiting": 3.0, "held": 2, "kv_usage": 0.5,
        "request_rate": 4.5, "ttft_s": 0.2}
EMPTY = {**SEEN, "ready": 0, "kv_usage": nan, "ttft_s": nan}
#: Two replicas of two engines each, of 2 GPUs, of which one starts at 10 s, is ready at 14 s, drains from 30 s to 31 s
#: and starts again at 38 s; and a pool whose only replica is always there.
LIVES = (((0.0, "ready"),),
         ((0.0, "gone"), (10.0, "starting"), (14.0, "ready"), (30.0, "draining"), (31.0, "gone"), (38.0, "starting")))


def engines():
    built = evolve(by_hand.small().engines[0], ranks=2, stages=1)
    pairs = [evolve(built, engine=2 * replica + rank, pool="a", replica=replica, life=life)
             for replica, life in enumerate(LIVES) for rank in range(2)]
    return [*pairs, evolve(built, engine=4, pool="b", replica=0, life=())]


def test_what_is_allocated_to_a_fleet_by_hand():
    assert allocation(engines()[:4], 264.0, 40.0) == pytest.approx({
        "allocated_gpu_seconds": 264.0, "mean_gpus": 6.6, "max_engines": 4, "min_engines": 2,
        "mean_replicas": (40 + 21 + 2) / 40, "replica_starts": 2, "replica_drains": 1})
    # Up to 12 s: the second replica has begun to start, and nothing else has happened.
    early = allocation(engines()[:4], 0.0, 12.0)
    assert (early["mean_replicas"], early["replica_starts"], early["replica_drains"]) == (14 / 12, 1, 0)


def test_each_change_of_a_replica_is_a_row():
    table = replica_table(engines(), 40.0)
    assert table.num_rows == 8 and set(table["gpus"].to_pylist()) == {4, 2}
    assert [(row["time_s"], row["replica"], row["state"]) for row in table.to_pylist() if row["time_s"]] == [
        (time, 1, state) for time, state in LIVES[1][1:]]
    assert replica_table(engines(), 30.0)["time_s"].to_pylist() == [0.0] * 3 + [10.0, 14.0, 30.0]


def test_each_decision_is_a_row_with_what_was_seen():
    log = Log(engines(), [Scaled(30.0, "a", 2, 1, "less", EMPTY), Scaled(10.0, "a", 1, 2, "more", SEEN)])
    rows = scaling_rows(log.columns(Scaled)).to_pylist()
    assert rows[0] == {"time_s": 10.0, "pool": "a", "before": 1, "replicas": 2, "reason": "more", **SEEN}
    assert rows[1]["kv_usage"] is None and rows[1]["ttft_s"] is None
    counted = decisions({"pools": {"a": {}, "b": {}}}, log)
    assert counted == {"scaling_decisions": 2, "pools": {"a": {"scaling_decisions": 2}, "b": {"scaling_decisions": 0}}}


@st.composite
def lives(draw):
    """A life from any state on, in which states follow each other in any order and may last for no time."""
    times = sorted(draw(st.lists(st.integers(0, 50), max_size=8)))
    states = st.sampled_from(("starting", "ready", "draining", "gone"))
    return tuple((float(time), draw(states)) for time in [0, *times])


@given(st.lists(lives(), min_size=1, max_size=4), st.integers(1, 60))
def test_gpus_over_time_add_up_to_those_that_are_paid(found, duration):
    built = [evolve(engines()[0], engine=number, replica=number, life=life) for number, life in enumerate(found)]
    sizes = FleetSizes.of(replica_table(built, duration), scaling_rows(Log(built).columns(Scaled)))
    ends = np.array([float(duration)])
    paid = 2 * (len(built) * duration - absent(built, duration).sum())
    assert sizes.gpus["a"].integral(ends)[0] == pytest.approx(paid)
    numbers = allocation(built, paid, float(duration))
    assert numbers["mean_replicas"] * duration * 2 == pytest.approx(paid)
    states = sum(sizes.replicas["a"][state].integral(ends)[0] for state in ("starting", "ready", "draining"))
    assert 2 * states == pytest.approx(paid)


def test_what_nobody_has_of_a_node_is_shared_by_who_has_the_rest():
    """Nodes of 8 GPUs that stay for 5 s.  On one, an engine of 2 is all along, and another from 10 s to 30 s; on the
    other, one from 10 s to 20 s and from 24 s to 30 s, so that it is there for 25 s."""
    lives = ((), ((0.0, "gone"), (10.0, "starting"), (30.0, "gone")),
             ((0.0, "gone"), (10.0, "ready"), (20.0, "gone"), (24.0, "ready"), (30.0, "gone")))
    built = [evolve(engines()[0], engine=number, pool="ab"[number % 2], life=life, nodes=(number // 2,), node_gpus=8,
                    node_idle=5.0) for number, life in enumerate(lives)]
    held = allocated_gpu_seconds(built, 40.0)
    assert held == pytest.approx([320 * 80 / 120, 320 * 40 / 120, 8 * 25])
    assert allocation(built[:2], held[:2].sum(), 40.0)["unused_gpu_seconds"] == pytest.approx(200)


@given(st.lists(st.tuples(lives(), st.sets(st.integers(0, 2), min_size=1, max_size=2)), min_size=1, max_size=4),
       st.integers(1, 60), st.integers(0, 20))
def test_nodes_are_paid_once_and_for_no_less_than_what_is_on_them(found, duration, idle):
    built = [evolve(engines()[0], engine=number, life=life, nodes=tuple(sorted(nodes)), node_gpus=8,
                    node_idle=float(idle)) for number, (life, nodes) in enumerate(found)]
    held, own = allocated_gpu_seconds(built, float(duration)), 2 * (duration - absent(built, float(duration)))
    assert (held >= own - 1e-9).all() and ((held > 0) == (own > 0)).all()
    assert held.sum() <= 8 * 3 * duration + 1e-9
    for node in range(3):  # with time to stay, a node is there from its first engine on
        first = min((moment for (life, nodes) in found if node in nodes for (moment, state), (until, _) in pairwise(
            (*life, (inf, ""))) if state != "gone" and moment < min(until, duration)), default=duration)
        stays = [evolve(one, node_idle=inf) for one in built if node in one.nodes]
        alone = [evolve(one, nodes=(node,), ranks=1) for one in stays]
        if alone:
            assert allocated_gpu_seconds(alone, float(duration)).sum() == pytest.approx(8 * (duration - first))


def test_sizes_over_time_by_hand():
    log = Log(engines(), [Scaled(10.0, "a", 1, 2, "more", SEEN), Scaled(30.0, "a", 2, 1, "less", SEEN)])
    sizes = FleetSizes.of(replica_table(log.engines, 40.0), scaling_rows(log.columns(Scaled)))
    moments = np.array([0.0, 9.9, 10.0, 14.0, 30.5, 31.0, 39.0])
    counts = {state: series.at(moments).tolist() for state, series in sizes.replicas["a"].items()}
    assert counts == {"wanted": [1, 1, 2, 2, 1, 1, 1], "starting": [0, 0, 1, 0, 0, 0, 1],
                      "ready": [1, 1, 1, 2, 1, 1, 1], "draining": [0, 0, 0, 0, 1, 0, 0]}
    assert sizes.gpus["a"].at(moments).tolist() == [4, 4, 8, 8, 8, 4, 8]
    assert sizes.gpus["b"].at(moments).tolist() == [2] * 7
    assert [*windows(sizes.replicas["a"]["wanted"], 20.0)] == [(0.0, 1.0), (10.0, 2.0), (20.0, 2.0)]
