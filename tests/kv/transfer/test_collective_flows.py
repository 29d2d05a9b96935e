"""Collectives between nodes share links with transfers: both become slower, and alone nothing changes."""

from itertools import pairwise
from typing import Any

import pytest

from ksim.engine.collective_flows import CollectiveFlows
from ksim.features.connectors import ConnectorsFeature, FleetMoves
from ksim.flow.events import Finished, Stepped, Transferred
from tests.kv.transfer.fleets import requests, run, scenario
from tests.specs.hosts import as_toml, host

#: Nodes have eight GPUs; the prefill engine lies on two.
POOLS = {"prefill": {"role": "prefill", "serve": {"tensor_parallel_size": 16}},
         "decode": {"role": "decode", "serve": {"tensor_parallel_size": 4}}}
#: So does the decode engine.
PIPELINE = {"prefill": {"role": "prefill", "serve": {"tensor_parallel_size": 4}},
            "decode": {"role": "decode", "serve": {"tensor_parallel_size": 4, "pipeline_parallel_size": 4}}}


def across(count: int = 12, share: float = 1.0, **more: Any) -> dict[str, Any]:
    made = scenario("llama-3.1-8b", options={"share": share}, num_gpu_blocks_override=2000, max_num_batched_tokens=4096,
                    max_model_len=4096, pools=POOLS, workload=requests(
                        count, 100, {"kind": "uniform", "low": 1000, "high": 3000}, {"kind": "fixed", "value": 40},
                        max_tokens=4000))
    return {**made, "nodes": 4, **more}


def lasting(log, engine: int) -> dict[int, float]:
    """The seconds that the GPUs of an engine worked on each step."""
    return {step.index: step.end - step.start for step in log.of(Stepped) if step.engine == engine}


@pytest.mark.parametrize("pools", [POOLS, PIPELINE], ids=["tensor", "pipeline"])
def test_a_step_that_meets_nobody_is_as_long_as_without_flows(monkeypatch, pools):
    table = {**across(count=1), "pools": pools}
    met = run(table).log
    monkeypatch.setattr(FleetMoves, "collective_flows", lambda *_: None)
    alone = run(table, skips=False).log
    for engine in (0, 1):
        assert lasting(met, engine) == pytest.approx(lasting(alone, engine), rel=1e-9)
    assert [event.time for event in met.of(Finished)] == pytest.approx([event.time for event in alone.of(Finished)])


def test_steps_beside_other_flows_are_longer_by_as_much_as_they_leave_them(monkeypatch, tmp_path):
    """Four flows that never end share a NIC with the prefill engine's collectives: these get a fifth of it.

    The host costs nothing, so no step waits for its launches.
    """
    free = tmp_path / "free.toml"
    free.write_text(as_toml(host()))
    alone = run(across(host=str(free))).log
    late: list[float] = []
    moves, delay = ConnectorsFeature.moves, CollectiveFlows._delay

    def crowded(*parts: Any) -> Any:
        made = moves(*parts)
        for _ in range(4):
            made.network.flows.start(1e15, made.network.links.path("gpu0", "gpu16"))
        return made

    monkeypatch.setattr(ConnectorsFeature, "moves", crowded)
    monkeypatch.setattr(CollectiveFlows, "_delay", lambda flows, step, by: (late.append(by), delay(flows, step, by)))
    met = run(across(host=str(free))).log
    steps = [step for step in met.of(Stepped) if step.engine == 0]
    assert len(late) == len(steps) and all(by > 0 for by in late)
    assert all(begin.end <= behind.start for begin, behind in pairwise(steps))
    assert {*lasting(met, 1)} >= {0} and len([*met.of(Finished)]) == 12
    assert sum(step.end - step.start for step in steps) == pytest.approx(sum(late) + sum(
        cost.seconds for step in steps for cost in step.step_costs), rel=1e-6)
    assert max(event.time for event in met.of(Finished)) > max(event.time for event in alone.of(Finished))
    slower, usual = ([moved.time - moved.began for moved in log.of(Transferred)] for log in (met, alone))
    assert sum(slower) > sum(usual)


def test_the_ranks_of_a_data_parallel_group_end_together(monkeypatch):
    """Experts over two nodes: the exchange of their tokens is one flow of the group."""
    pools = {"prefill": {"role": "prefill", "serve": {"tensor_parallel_size": 8}},
             "decode": {"role": "decode", "serve": {"tensor_parallel_size": 4, "data_parallel_size": 4,
                                                    "enable_expert_parallel": True}}}
    table = {**across(), "model": "qwen3-30b-a3b", "pools": pools}
    log = run(table).log
    rounds: dict[float, list[float]] = {}
    for step in log.of(Stepped):
        if step.engine and step.batch.tokens:
            rounds.setdefault(step.end, []).append(step.engine)
    assert any(len(engines) > 1 for engines in rounds.values())
    assert len([*log.of(Finished)]) == 12


def test_collectives_within_a_node_are_no_flows():
    table = across()
    table["pools"] = {name: {**pool, "serve": {"tensor_parallel_size": 4}} for name, pool in POOLS.items()}
    assert len([*run(table).log.of(Finished)]) == 12
