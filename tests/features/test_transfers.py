"""Which connector the pools of a fleet have, and between which pools it can send KV."""

import tomllib

import pytest
from attrs import fields_dict

from ksim.features.transfers import completed, connector_of
from ksim.foundation import catalog
from ksim.foundation.config import plain
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.kv.transfer.connectors.engines import Sglang
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.specs.configs import KvTransferConfig
from tests.scenario.tables import TABLE

FILES = catalog.names("kv.transfer.connectors")


def fleet(prefill=None, decode=None, **changes):
    pools = {"p": {"role": "prefill", **(prefill or {})}, "d": {"role": "decode", **(decode or {})}}
    return Fleet.of(Scenario.of({**TABLE, "pools": pools, **changes}))


def configs(made):
    return [pool.deployment.serve.kv_transfer_config for pool in made.pools]


def test_the_keys_and_defaults_are_vllms():
    """vllm/config/kv_transfer.py of 0.33; vLLM draws an `engine_id`, and wants a `kv_role` where ksim knows it."""
    assert plain(KvTransferConfig()) == {
        "kv_buffer_device": "cuda", "kv_buffer_size": 1e9, "kv_parallel_size": 1, "kv_ip": "127.0.0.1",
        "kv_port": 14579, "kv_connector_extra_config": {}, "enable_permute_local_kv": False,
        "kv_load_failure_policy": "fail"}
    assert {*fields_dict(KvTransferConfig)} == {
        "kv_connector", "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_role", "kv_rank", "kv_parallel_size",
        "kv_ip", "kv_port", "kv_connector_extra_config", "kv_connector_module_path", "enable_permute_local_kv",
        "kv_load_failure_policy"}


@pytest.mark.parametrize("file", FILES)
def test_a_connector_is_named_by_its_file_or_by_its_class(file):
    by_file = connector_of(KvTransferConfig(file))
    assert connector_of(KvTransferConfig(by_file.alias)) == by_file


def test_vllms_names_are_known():
    assert {"NixlConnector", "MooncakeConnector"} <= {connector_of(KvTransferConfig(file)).alias for file in FILES}
    with pytest.raises(UnknownName, match="did you mean 'MooncakeConnector'"):
        connector_of(KvTransferConfig("MoncakeConnector"))


@pytest.mark.parametrize("name", ["FlexKVConnectorV1", "HF3FSKVConnector", "MoRIIOConnector"])
def test_vllms_other_connectors_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"kv_connector: vLLM's {name} is not simulated; .*NixlConnector"):
        completed(KvTransferConfig(kv_connector=name), "prefill")


@pytest.mark.parametrize("name", ["LMCacheConnectorV1", "OffloadingConnector", "MooncakeStoreConnector", "HiCache"])
def test_connectors_that_offload_are_refused_between_engines(name):
    with pytest.raises(ConfigError, match=rf"kv_connector: {name} offloads, and .* MultiConnector"):
        completed(KvTransferConfig(kv_connector=name), "prefill")


@pytest.mark.parametrize(("answers", "reason"), [
    ({"pull": True}, "has pull and concurrent: D would read before P has computed"),
    ({"concurrent": False}, "has by_chunk and not concurrent: P would wait for D, and D for P's answer")])
def test_a_connector_that_contradicts_itself_is_refused(answers, reason, monkeypatch):
    for key, answer in answers.items():
        monkeypatch.setattr(Sglang, key, answer)
    with pytest.raises(ConfigError, match=f"kv_connector: sglang {reason}"):
        connector_of(KvTransferConfig("sglang"))


def test_prefill_and_decode_engines_use_nixl_unless_something_is_said():
    assert [(config.kv_connector, config.kv_role) for config in configs(fleet())] == [
        ("NixlConnector", "kv_producer"), ("NixlConnector", "kv_consumer")]
    asked = {"kv_transfer_config": {"kv_connector": "mooncake", "kv_role": "kv_both"}}
    assert [(config.kv_connector, config.kv_role) for config in configs(fleet(serve=asked))] == [
        ("mooncake", "kv_both"), ("mooncake", "kv_both")]


def test_a_pool_may_say_what_happens_when_a_load_fails():
    """The other keys are those of the scenario."""
    made = fleet(decode={"serve": {"kv_transfer_config": {"kv_load_failure_policy": "recompute"}}},
                 serve={"kv_transfer_config": {"kv_connector": "MooncakeConnector"}})
    assert [(config.kv_connector, config.kv_load_failure_policy) for config in configs(made)] == [
        ("MooncakeConnector", "fail"), ("MooncakeConnector", "recompute")]


def test_a_role_that_the_pool_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="is 'kv_consumer', and the pool's role is 'prefill'; set 'kv_producer'"):
        completed(KvTransferConfig(kv_role="kv_consumer"), "prefill")
    assert completed(KvTransferConfig(kv_role="kv_both"), "prefill").consumes


def test_a_resolved_fleet_that_splits_resolves_to_itself():
    resolved = fleet(prefill={"gpu": "h100"}).scenario
    again = Scenario.of(tomllib.loads(resolved.to_toml()))
    assert Fleet.of(again).scenario == again == resolved


def test_two_names_of_one_format_are_alike():
    assert fleet(*({"serve": {"kv_cache_dtype": dtype}} for dtype in ("auto", "bfloat16"))).splits


def test_unequal_tensor_parallel_sizes_need_a_connector_that_takes_them():
    sides = {"serve": {"tensor_parallel_size": 2}}, {"serve": {"tensor_parallel_size": 4}}
    assert fleet(*sides).splits
    with pytest.raises(ConfigError, match=r"pools.d.serve.tensor_parallel_size: is 4, and that of pool p is 2"):
        fleet(*sides, serve={"kv_transfer_config": {"kv_connector": "MooncakeConnector"}})


def test_engines_of_role_both_may_decode_for_others():
    made = fleet(decode={"role": "both"}, pair_router="llm_d")
    assert made.splits and configs(made)[1].kv_role == "kv_both"


def test_offloading_to_a_tier_is_no_sending_in_any_pool():
    """`kv_offloading_size` names the connector that `kv_transfer_config` leaves open."""
    serve = {"kv_offloading_size": 1, "kv_transfer_config": {"kv_connector_extra_config": {}}}
    alone, pooled = (Fleet.of(Scenario.of({**TABLE, "serve": serve, **pools}))
                     for pools in ({}, {"pools": {"all": {"role": "both"}}}))
    assert configs(alone) == configs(pooled)
    assert configs(alone)[0].kv_connector == "OffloadingConnector"
