"""Every engine setting that `vllm serve` has a flag for gets what the flag says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.deploy.flags.given import flag_table
from ksim.deploy.flags.meaning import meaning
from ksim.foundation.keys import keys
from ksim.specs.settings import CUDAGRAPH_MODES, EngineSettings
from tests.deploy.launching import served
from tests.properties import examples

FLAGS = {flag.dest: flag for flag in flag_table("vllm", "vLLM").flags}
KEYS = {key.name: key for key in keys(EngineSettings)}
#: Settings of ksim's own, or that other engines have.
OWN = {"admission", "prefix_cache", "eviction", "usage_context", "unquantized", "expert_parallel_size",
       "overlap_stages", "overlap_sms", "dbo_comm_sms", "moe_nvfp4_dispatch", "enable_single_batch_overlap", "sglang"}
#: Values of flags that have tables, or other names, by setting.
TABLES = {
    "cudagraph_mode": ("--compilation-config", lambda value: {"cudagraph_mode": value}),
    "fuse_allreduce_rms": ("--compilation-config", lambda value: {"pass_config": {"fuse_allreduce_rms": value}}),
    "fi_allreduce_fusion_max_size_mb": (
        "--compilation-config", lambda value: {"pass_config": {"fi_allreduce_fusion_max_size_mb": value}}),
    "num_redundant_experts": ("--eplb-config", lambda value: {"num_redundant_experts": value}),
    "eplb_window_size": ("--eplb-config", lambda value: {"window_size": value}),
    "eplb_step_interval": ("--eplb-config", lambda value: {"step_interval": value}),
}
SPECIAL = {
    "cudagraph_mode": st.sampled_from(CUDAGRAPH_MODES), "fuse_allreduce_rms": st.booleans(),
    "fi_allreduce_fusion_max_size_mb": st.floats(0.5, 64.0), "num_redundant_experts": st.integers(0, 64),
    "hf_overrides": st.fixed_dictionaries({"max_position_embeddings": st.integers(4096, 2**20)}),
    "quantization": st.sampled_from(["fp8", "mxfp4", "modelopt_fp4"]),
    "kv_cache_dtype": st.sampled_from(["auto", "bfloat16", "fp8"]),
    "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
    "all2all_backend": st.sampled_from(["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"]),
    "max_lora_rank": st.sampled_from([8, 16, 64]),
    "lora_target_modules": st.lists(st.sampled_from(["q_proj", "o_proj"]), min_size=1, max_size=2),
    "kv_transfer_config": st.fixed_dictionaries({
        "kv_connector": st.sampled_from(["NixlConnector", "OffloadingConnector"]),
        "kv_role": st.sampled_from(["kv_producer", "kv_consumer", "kv_both"])}),
    "speculative_config": st.fixed_dictionaries({
        "method": st.just("ngram"), "num_speculative_tokens": st.integers(1, 8),
        "acceptance": st.fixed_dictionaries({"name": st.just("geometric"), "rate": st.floats(0.1, 1.0)})}),
    "limit_mm_per_prompt": st.fixed_dictionaries({"image": st.integers(0, 9), "video": st.integers(0, 9)}),
    "mm_processor_kwargs": st.fixed_dictionaries({"max_pixels": st.integers(1, 10**7)}),
    "lora_modules": st.lists(st.sampled_from(["sql", "chat", "code"]), min_size=1, max_size=3, unique=True).map(
        lambda names: [{"name": name, "rank": 16} for name in names]),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 512), min_size=1, max_size=4),
}


#: Flags without which a setting is refused.
BESIDE = {"enable_dbo": ["-ep", "-dp", "2", "--all2all-backend", "deepep_low_latency"],
          "enable_eplb": ["-ep", "-tp", "2"], "expert_placement_strategy": ["-ep", "-tp", "2"],
          "num_redundant_experts": ["--enable-eplb", "-ep", "-tp", "2"], "lora_modules": ["--enable-lora"]}


def values(name):
    """What the setting may be set to."""
    if name in SPECIAL:
        return SPECIAL[name]
    key = KEYS[name]
    if key.choices:
        return st.sampled_from(key.choices)
    return {bool: st.booleans(), int: st.integers(2, 4096), float: st.floats(0.05, 0.95)}[key.kind]


def words(name, value):
    """The flags that say that the setting is *value*."""
    if name in TABLES:
        table, made = TABLES[name]
        return [table, json.dumps(made(value))]
    flag = FLAGS[name]
    if name == "lora_modules":
        return [flag.name, *(f"{adapter['name']}=/adapters/{adapter['name']}" for adapter in value)]
    if isinstance(value, bool):
        return [flag.name if value else flag.off[0]]
    if isinstance(value, dict):
        return [flag.name, json.dumps(value)]
    return [flag.name, *(map(str, value) if isinstance(value, list) else [str(value)])]


@pytest.mark.parametrize("name", sorted(KEYS.keys() - OWN))
@examples(18)
@given(data=st.data())
def test_a_flag_says_what_its_setting_says(name, data):
    value = data.draw(values(name))
    assert served(*words(name, value), *BESIDE.get(name, []))[name] == value


def test_every_setting_of_one_value_is_found_under_its_own_name():
    assert {dest for dest, key in meaning("vllm").keys.items() if dest != key} == set()
    assert KEYS.keys() - OWN - TABLES.keys() <= FLAGS.keys()


@given(st.integers(1, 10**6))
@examples(20)
def test_whole_numbers_may_have_units(thousands):
    assert served("--max-model-len", f"{thousands}k")["max_model_len"] == thousands * 1000
    assert served("--max-num-batched-tokens", f"{thousands}K")["max_num_batched_tokens"] == thousands * 1024
