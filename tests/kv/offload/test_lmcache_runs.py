"""Runs whose engines have LMCache: what a load and a store cost, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Copied
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from tests.kv.offload.runs import BLOCK, extras, fleets, scenario, serves, workloads
from tests.kv.transfer.fleets import run
from tests.laws.happenings import facts
from tests.properties import examples

GIB = 2**30


def with_lmcache(model: str, chunks: float = 50, workload: Any = None, extra: Any = (), **more: Any) -> dict[str, Any]:
    """A scenario whose ranks have room for so many chunks of two blocks."""
    table = scenario(model, workload=workload, **more)
    config = table["serve"]["kv_transfer_config"]
    if config["kv_connector"] == "MultiConnector":
        config = config["kv_connector_extra_config"]["connectors"][1]
    config["kv_connector"] = "LMCacheConnectorV1"
    config["kv_connector_extra_config"] = {
        "lmcache.chunk_size": 32, "lmcache.max_local_cpu_size": chunks * 2 * BLOCK / GIB, **dict(extra)}
    return table


def repeated(tmp_path: Any, *arrivals: float, prompt: int = 130) -> dict[str, Any]:
    """Requests with the same prompt."""
    names = "|".join(str(place) for place in range(-(-prompt // 16)))
    rows = [f"{arrival},{prompt},4,{names}" for arrival in arrivals]
    (tmp_path / "t.csv").write_text("\n".join(["arrival,prompt,output,hash_ids", *rows]))
    return {"replay": {"path": str(tmp_path / "t.csv")}}


@given(data=st.data())
@examples(12)
def test_going_ahead_never_changes_anything(model, data):
    workload = data.draw(workloads)
    workload["synthetic"] |= data.draw(extras)
    extra = {"lmcache.save_decode_cache": data.draw(st.booleans())}
    table = with_lmcache(model, data.draw(st.sampled_from([1, 10, 100])), workload, extra, pools=data.draw(fleets),
                         **data.draw(serves))
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))


def test_a_prompt_that_left_the_gpu_is_loaded_within_a_step(model, tmp_path):
    table = with_lmcache(model, workload=repeated(tmp_path, 0, 1), enable_prefix_caching=False)
    log = run(table).log
    stores = [copy for copy in log.of(Copied) if copy.source == "gpu"]
    (load,) = [copy for copy in log.of(Copied) if copy.source == "cpu"]
    assert (load.request_id, load.tokens, load.bytes) == (1, 128, 8 * BLOCK)
    assert sum(copy.bytes for copy in stores) == 8 * BLOCK and {copy.request_id for copy in stores} == {0}


def test_with_several_gpus_each_has_room_of_its_own(model, tmp_path):
    table = with_lmcache(model, 4, repeated(tmp_path, 0, 1), enable_prefix_caching=False, tensor_parallel_size=2)
    (load,) = [copy for copy in run(table).log.of(Copied) if copy.source == "cpu"]
    assert load.tokens == 128  # half of each block is on each, so each has room for twice as many


def test_steps_wait_for_stores(model, tmp_path):
    """The first batch of two stores; the second one begins when that has ended."""
    workload = repeated(tmp_path, 0)
    stores = run(with_lmcache(model, 50, workload, async_scheduling=False))
    table = with_lmcache(model, 50, workload, async_scheduling=False)
    del table["serve"]["kv_transfer_config"]
    plain = run(table)
    spent = sum(copy.time - copy.began for copy in stores.log.of(Copied))
    assert not list(plain.log.of(Copied)) and spent > 0
    assert stores.summary["duration"] > plain.summary["duration"] + 0.5 * spent


@pytest.mark.parametrize(("options", "says"), [
    ({"lmcache.chunk_size": 40}, "lmcache.chunk_size = 40 is no multiple of the KV cache's blocks of 16 tokens;"),
    ({"lmcache.use_layerwise": True}, "lmcache.use_layerwise = True is not simulated; leave it out"),
    ({"lmcache.remote_url": "redis://a"}, "lmcache.remote_url = 'redis://a' is not simulated; leave it out"),
    ({"LMCACHE_CHUNK_SIZE": 24}, "lmcache.chunk_size = 24 is no multiple"),
    ({"lmcache": {"chunk_size": 24}}, "lmcache.chunk_size = 24 is no multiple"),
    ({"lmcache.chunks": 24}, "chunks"),
])
def test_options_that_cannot_be_are_refused_by_name(model, options, says):
    table = with_lmcache(model)
    table["serve"]["kv_transfer_config"]["kv_connector_extra_config"] = options
    with pytest.raises(ConfigError) as error:
        Fleet.of(Scenario.of(table))
    assert says in str(error.value) and "kv_connector_extra_config" in str(error.value)


def test_the_flags_of_vllm_for_offloading_with_lmcache(model):
    table = scenario(model, kv_offloading_size=1.0, kv_offloading_backend="lmcache", tensor_parallel_size=2)
    table["serve"]["kv_transfer_config"] = None
    config = Fleet.of(Scenario.of(table)).pools[0].deployment.serve.kv_transfer_config
    assert config is not None and config.kv_connector == "LMCacheConnectorV1"
    assert dict(config.kv_connector_extra_config) == {"lmcache.max_local_cpu_size": 0.5}
