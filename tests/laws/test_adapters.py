"""Runs with LoRA adapters: what they add, and what they leave as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.adapters import AdapterInputs
from ksim.flow.events import AdapterLoaded, RanksMet, Rejected
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play, simulate, stream
from ksim.views.result import Result
from ksim.workload.replay import Replay, Workload
from tests.laws.happenings import facts, times
from tests.laws.tiny import TINY, uniform
from tests.properties import examples

#: Names of the summary's keys for adapters.
KEYS = ("max_lora", "lora_loads", "lora_reads", "lora_load_seconds")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def scenario(model, adapters: int = 5, slots: int = 2, asked: dict[str, Any] | None = None, **serve: Any) -> Scenario:
    """A run of 30 requests that ask for *adapters* adapters, or for those *asked* for."""
    more = {key: serve.pop(key) for key in ("router", "seed", "detail", "ranks") if key in serve}
    lora = {"enable_lora": True, "max_loras": slots, "max_lora_rank": 32,
            "lora_modules": [{"name": "adapter", "rank": 8, "count": adapters}]} if adapters else {}
    load = {"arrivals": {"process": "poisson", "rate": 300.0}, "prompt": uniform(1, 150), "output": uniform(1, 40),
            "count": 30, "max_tokens": 250, "prefixes": {"groups": 2, "tokens": 40}}
    load |= {"adapters": {"count": adapters, "exponent": 0.7}} if asked is None and adapters else asked or {}
    return Scenario.of({"model": str(model), "gpu": "h200", "oracle": "roofline", "workload": {"synthetic": load},
                        "serve": {"max_model_len": 256, **lora, **serve}, **more})


def both(made: Scenario) -> tuple[Result, Result]:
    """A run that goes ahead of the clock, and one that does not."""
    site = Deployment.of(made)
    skipped, stepped = (play(evolve(site, skips=skips), made.workload.requests(made.seed)) for skips in (True, False))
    return skipped, stepped


serves = st.fixed_dictionaries({
    "async_scheduling": st.booleans(), "max_num_seqs": st.sampled_from([2, 8, 32]),
    "max_num_batched_tokens": st.sampled_from([32, 256]), "num_gpu_blocks_override": st.sampled_from([20, 500]),
    "data_parallel_size": st.sampled_from([1, 1, 2]), "pipeline_parallel_size": st.sampled_from([1, 1, 2]),
    "tensor_parallel_size": st.sampled_from([1, 2]), "fully_sharded_loras": st.booleans(),
    "enforce_eager": st.booleans(), "max_cpu_loras": st.sampled_from([None, 4]),
    "router": st.sampled_from(["round_robin", "lora_affinity"]), "seed": st.integers(0, 99)})


@given(serve=serves, adapters=st.integers(1, 5), slots=st.integers(1, 3))
@examples(6)
def test_going_ahead_never_changes_anything(model, serve, adapters, slots):
    serve = {name: value for name, value in serve.items() if value is not None}
    skipped, stepped = both(scenario(model, adapters, slots, **serve))
    assert facts(skipped.log) == facts(stepped.log)
    assert times(skipped.log) == pytest.approx(times(stepped.log), rel=1e-9)
    loads = [[(load.engine, load.adapter, load.read) for load in run.log.of(AdapterLoaded)]
             for run in (skipped, stepped)]
    assert sorted(loads[0]) == sorted(loads[1])
    for block in skipped.log.step_blocks:
        assert all(len(batch.adapters) <= slots for batch in block.batches.batches)


def test_adapters_that_nobody_asks_for_cost_kv_blocks_alone(model):
    plain, enabled = (simulate(scenario(model, adapters, asked={}, num_gpu_blocks_override=300)) for adapters in (0, 5))
    assert enabled.summary == {**plain.summary, "max_lora": 2, "lora_loads": 0, "lora_reads": 0,
                               "lora_load_seconds": 0.0}
    found, other = (Deployment.of(scenario(model, adapters, asked={})) for adapters in (0, 5))
    layer = 2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 256)  # queries and outputs, 4 KV heads of 16, the MLP
    slots = 2 * 32 * 2 * layer * 2  # adapters, rank, layers, bytes
    cache = found.model.cache_per_token(found.shards[0]) * 16
    assert found.kv_blocks - other.kv_blocks in (int(slots / cache), int(slots / cache) + 1)


def test_without_enable_lora_there_is_nothing_new(model):
    run = simulate(scenario(model, 0))
    assert not {*KEYS} & run.summary.keys()
    assert "adapter" not in run.requests.column_names
    assert not [name for name in run.attribution.column_names if "adapter" in name]


def test_a_load_delays_the_step_that_needs_it_and_is_explained(model):
    one = {"adapters": {"count": 1}, "arrivals": {"process": "burst"}, "count": 1}
    there, away = (simulate(scenario(model, adapters, 1, asked=one)) for adapters in (1, 3))
    (load,) = away.log.of(AdapterLoaded)
    (copied,) = Deployment.of(scenario(model)).model.decoder.inputs
    assert isinstance(copied, AdapterInputs)
    copy = load.size / copied.rate
    assert load.read and (load.adapter, load.engine) == ("adapter-0", 0)
    later = (away.summary["mean_ttft_ms"] - there.summary["mean_ttft_ms"]) / 1e3
    assert load.seconds * (1 - 1e-6) <= later <= (load.seconds + copy) * (1 + 1e-6)  # launches may take longer
    assert away.attribution["to_first.adapter_loads"][0].as_py() == pytest.approx(load.seconds, rel=1e-6)
    assert 0 < away.attribution["to_first.prefill.host_copy"][0].as_py() <= copy * (1 + 1e-6)
    assert [away.summary[key] for key in KEYS] == [1, 1, 1, load.seconds]
    assert away.requests["adapter"].to_pylist() == ["adapter-0"]


def test_a_streamed_run_counts_the_same_loads(model, tmp_path):
    made = scenario(model, 5, 2)
    run, streamed = simulate(made), stream(made, tmp_path / "out")
    assert {key: streamed.summary[key] for key in KEYS} == {key: run.summary[key] for key in KEYS}
    assert run.summary["lora_loads"] > 0


def test_steps_of_ranks_take_the_same_time(model):
    alike = {"slow": [{"gpu": gpu} for gpu in range(2)]}
    whole, ranks = (simulate(scenario(model, 4, 2, tensor_parallel_size=2, **more)) for more in
                    ({}, {"detail": "rank", "ranks": alike}))
    assert any(ranks.log.of(RanksMet))
    assert ranks.summary["mean_ttft_ms"] == pytest.approx(whole.summary["mean_ttft_ms"], rel=1e-6)


def test_a_router_that_knows_where_adapters_are_loads_less(model):
    serve = {"data_parallel_size": 3, "adapters": 6, "slots": 2, "max_cpu_loras": 6}
    blind, affine = (simulate(scenario(model, router=router, **serve)) for router in ("round_robin", "lora_affinity"))
    assert affine.summary["lora_loads"] < blind.summary["lora_loads"]


def test_requests_for_adapters_that_are_not_there_are_rejected(model, tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output,adapter\n0,5,2,sql\n0,5,2,adapter-1\n0,5,2,\n")
    for adapters, rejected in ((2, ["'sql' does not exist: it is none of lora_modules"]),
                               (0, ["'sql' does not exist: enable_lora is off",
                                    "'adapter-1' does not exist: enable_lora is off"])):
        run = simulate(evolve(scenario(model, adapters), workload=Workload(replay=Replay(tmp_path / "t.csv"))))
        reasons = [event.reason for event in run.log.of(Rejected)]
        assert len(reasons) == len(rejected) and all(want in got for want, got in zip(rejected, reasons, strict=True))


@pytest.mark.parametrize(("changes", "says"), [
    ({"asked": {"adapters": {"count": 6}}}, "asks for 'adapter-5'.*add {name = \"adapter\", count = 6}"),
    ({"adapters": 0, "asked": {"adapters": {"count": 2}}}, "serve.enable_lora is off"),
    ({"lora_target_modules": ["w1"]}, "has no 'w1'"),
    ({"lora_modules": [{"name": "a", "target_modules": ["gate"]}], "asked": {}}, "'gate' is no module"),
])
def test_what_does_not_go_together_is_refused(model, changes, says):
    with pytest.raises(ConfigError, match=says):
        Fleet.of(scenario(model, **changes))


def test_slots_that_leave_no_room_are_named(model):
    with pytest.raises(DoesNotFit, match="with 488.3 of slots for max_loras = 2000000 adapters"):
        Fleet.of(scenario(model, 5, 2_000_000)).check_memory()
