"""A scenario for one engine of several: which settings count, and under which names."""

import pytest

from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.engines import with_own_settings
from ksim.scenario.scenario import Scenario

WORKLOAD = {"synthetic": {"count": 1, "arrivals": {"process": "poisson", "rate": 1.0},
                          "prompt": {"kind": "fixed", "value": 10}, "output": {"kind": "fixed", "value": 10}}}


def serve(engine, **given):
    scenario = Scenario.of({"model": "llama-3.1-8b", "gpu": "h100", "engine": engine, "serve": given,
                            "workload": WORKLOAD})
    return with_own_settings(scenario).serve


def test_limits_of_vllm_count_for_sglang_under_its_names():
    given = serve("sglang-0.5.23", max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=8192, block_size=16,
                  enable_prefix_caching=False, async_scheduling=False)
    assert (given.max_num_seqs, given.max_num_batched_tokens, given.max_model_len) == (None, None, None)
    assert given.sglang.max_running_requests == 64 and given.sglang.chunked_prefill_size == 4096
    assert given.sglang.context_length == 8192 and given.sglang.page_size == 16
    assert given.sglang.disable_radix_cache and given.sglang.disable_overlap_schedule


def test_limits_of_sglang_count_for_vllm_where_it_has_none_of_its_own():
    given = serve("vllm-0.33", max_model_len=4096, sglang={"max_running_requests": 64, "context_length": 8192,
                                                           "disable_radix_cache": True, "schedule_policy": "lpm"})
    assert given.sglang is None
    assert (given.max_num_seqs, given.max_model_len, given.enable_prefix_caching) == (64, 4096, False)


def test_an_engine_s_own_setting_comes_first():
    given = serve("sglang-0.5.23", max_num_seqs=64, gpu_memory_utilization=0.8,
                  sglang={"max_running_requests": 32, "mem_fraction_static": 0.7})
    assert given.sglang.max_running_requests == 32 and given.sglang.mem_fraction_static == 0.7
    assert given.max_num_seqs is None and given.gpu_memory_utilization is None


def test_limits_of_a_rank_are_those_of_all_ranks_in_sglang():
    assert serve("sglang-0.5.23", max_num_seqs=8, data_parallel_size=4).sglang.max_running_requests == 32
    assert serve("vllm-0.33", data_parallel_size=4, sglang={"max_running_requests": 32}).max_num_seqs == 8


def test_whole_prompts_of_sglang_are_no_limit_of_tokens():
    assert serve("vllm-0.33", sglang={"chunked_prefill_size": -1}).max_num_batched_tokens is None


def test_what_means_something_else_stays_and_is_refused():
    scenario = Scenario.of({"model": "llama-3.1-8b", "gpu": "h100", "engine": "sglang-0.5.23", "workload": WORKLOAD,
                            "serve": {"gpu_memory_utilization": 0.8}})
    with pytest.raises(ConfigError, match="gpu_memory_utilization.*mem_fraction_static"):
        Deployment.of(with_own_settings(scenario))
