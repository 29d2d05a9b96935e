"""What an engine's release makes of settings that are left open, and where releases differ."""

import json
import re
from pathlib import Path

import pytest

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.kv.cache.block_cache import BlockCache
from ksim.scenario.cache_layout import RESERVED
from ksim.scenario.defaults import Defaults, Deployment, capture_sizes
from ksim.scenario.hardware import engine_of, gpu_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import memory, shards_of
from ksim.scheduling.job import Job, Limits
from ksim.scheduling.policies.orders import Priority
from ksim.scheduling.scheduler import Scheduler
from ksim.specs.settings import EngineSettings
from ksim.specs.sglang import SglangSettings
from tests.scenario.tables import TABLE

H200 = Path(__file__).parents[3] / "shared" / "data" / "h200"


def defaults(engine="vllm-0.33", gpu="h200", **settings):
    return Defaults(EngineSettings(**settings), engine_of(engine), model_of("llama-3.1-8b"), gpu_of(gpu))


@pytest.mark.parametrize(("engine", "gpu", "usage", "tokens", "sequences"), [
    ("vllm-0.33", "h200", "llm_class", 16384, 1024), ("vllm-0.33", "b200", "openai_api_server", 16384, 1024),
    ("vllm-0.33", "a100-80g", "llm_class", 8192, 256), ("vllm-0.22", "b200", "openai_api_server", 8192, 1024),
    ("vllm-0.22", "l4", "openai_api_server", 2048, 256),
])
def test_a_step_by_release_gpu_and_usage(engine, gpu, usage, tokens, sequences):
    complete = defaults(engine, gpu, usage_context=usage, max_model_len=4096).complete()
    assert (complete.max_num_batched_tokens, complete.max_num_seqs) == (tokens, sequences)


def test_given_settings_stay_and_derived_ones_name_their_source():
    rows = {row.setting: row for row in defaults(max_num_seqs=64).explain()}
    assert (rows["max_num_seqs"].value, rows["max_num_seqs"].source) == (64, "as set")
    assert "139.8 GiB" in rows["max_num_batched_tokens"].source
    assert "llama-3.1-8b" in rows["max_model_len"].source
    assert all(row.source for row in rows.values())


@pytest.mark.parametrize("model, asked, quantization, unquantized", [
    ("llama-3.1-8b", "auto", "none", ()), ("qwen3-30b-a3b", "mxfp4", "mxfp4", ("attention", "mlp", "shared_experts")),
    ("gpt-oss-20b", "auto", "mxfp4", ("attention", "mlp", "shared_experts")), ("gpt-oss-20b", "none", "none", ()),
    ("minimax-m2.5", "auto", "fp8_block", ()), ("minimax-m2.5", "nvfp4", "nvfp4", ()),
])
def test_formats_are_the_checkpoints_unless_others_are_set(model, asked, quantization, unquantized):
    settings = EngineSettings(quantization=asked)
    complete = Defaults(settings, engine_of("vllm-0.33"), model_of(model), gpu_of("b200")).complete()
    assert (complete.quantization, complete.unquantized) == (quantization, unquantized)
    assert complete.kv_cache_dtype == "auto"


@pytest.mark.parametrize("settings", [
    {"quantization": "mxfp4"}, {"quantization": "mxfp4_mxfp8"},
    {"quantization": "fp8", "unquantized": ["attention", "mlp"]},
])
def test_a_quantization_of_nothing_is_refused(settings):
    with pytest.raises(ConfigError, match="serve.quantization: .* leaves llama-3.1-8b as it is: it does not quantize"
                                          " attention, mlp, and there is nothing else"):
        defaults(**settings).complete()


@pytest.mark.parametrize("asked", ["enable_eplb", "enable_expert_parallel"])
def test_expert_settings_are_refused_for_a_model_without_experts(asked):
    """vLLM: "Number of experts in the model must be greater than 0 when expert parallelism is enabled."."""
    serve = {"tensor_parallel_size": 2, "enable_expert_parallel": True, asked: True}
    with pytest.raises(ConfigError, match=f"serve.{asked}: llama-3.1-8b has no experts, and vLLM 0.33 refuses"):
        defaults(**serve).complete()


@pytest.mark.parametrize(("engine", "size", "taken"), [
    ("vllm-0.33", 16, True), ("vllm-0.33", 544, True), ("vllm-0.33", 8, False), ("vllm-0.22", 24, False),
    ("vllm-0.33-any-block", 7, True), ("trtllm-1.0", 32, True)])
def test_block_sizes_without_an_attention_kernel_are_refused(engine, size, taken):
    asked = Defaults(EngineSettings(block_size=size), engine_of(engine), model_of("llama-3.1-8b"), gpu_of("h200"))
    if taken:
        assert asked.complete().block_size == size
    else:
        with pytest.raises(ConfigError, match=f"serve.block_size: {size} is no multiple of 16, and .* set 16, 32 or"):
            asked.complete()


def test_without_chunked_prefill_a_step_holds_the_longest_prompt():
    assert defaults(enable_chunked_prefill=False, max_model_len=20000).complete().max_num_batched_tokens == 20000


def test_sequences_are_no_more_than_tokens():
    assert defaults(max_num_batched_tokens=512).complete().max_num_seqs == 512


@pytest.mark.skipif(not H200.exists(), reason="needs the measured H200 runs under ../shared/data/h200")
def test_capture_sizes_are_those_of_a_real_engine():
    assert list(capture_sizes(256, 8192)) == json.loads(
        (H200 / "engine_llama-3.1-8b.json").read_text())["capture_sizes"]


def test_few_sequences_have_few_capture_sizes():
    assert capture_sizes(8, 2048) == (1, 2, 4, 8, 16)
    assert capture_sizes(1, 2048) == (1, 2)


def test_no_graph_is_larger_than_a_step_may_be():
    """The largest step is a size of its own where it bounds them."""
    assert capture_sizes(8, 10) == (1, 2, 4, 8, 10)
    assert capture_sizes(256, 300, largest=2048) == (1, 2, 4, *range(8, 256, 8), 256, 272, 288, 300)
    assert capture_sizes(256, 8192, largest=16) == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("settings, mode, sizes", [
    ({"cudagraph_capture_sizes": [64, 8, 8, 100000]}, "FULL_AND_PIECEWISE", (8, 64)),
    ({"cudagraph_capture_sizes": [8, 64], "max_cudagraph_capture_size": 64}, "FULL_AND_PIECEWISE", (8, 64)),
    ({"cudagraph_capture_sizes": [100000]}, "NONE", ()),
    ({"cudagraph_capture_sizes": [8], "enforce_eager": True}, "NONE", ()),
    ({"max_cudagraph_capture_size": 100000, "max_num_batched_tokens": 6}, "FULL_AND_PIECEWISE", (1, 2, 4, 6)),
])
def test_capture_sizes_fit_steps(settings, mode, sizes):
    """And a scenario that states what was derived is derived as the same."""
    complete = defaults(max_model_len=2048, **settings).complete()
    assert (complete.cudagraph_mode, complete.cudagraph_capture_sizes) == (mode, sizes)
    assert Defaults(complete, engine_of("vllm-0.33"), model_of("llama-3.1-8b"), gpu_of("h200")).complete() == complete


@pytest.mark.parametrize("settings, message", [
    ({"cudagraph_capture_sizes": []}, "serve.cudagraph_capture_sizes: is empty; name at least one size"),
    ({"cudagraph_capture_sizes": [8, 64], "max_cudagraph_capture_size": 32},
     "serve.max_cudagraph_capture_size: 32 is not the largest of cudagraph_capture_sizes, which is 64"),
    ({"cudagraph_capture_sizes": [8, 100000], "max_cudagraph_capture_size": 100000}, "which is 8 within"),
])
def test_capture_sizes_that_vllm_refuses(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        defaults(**settings).complete()


def test_an_unknown_release_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no engine named 'vllm-0.34'; did you mean 'vllm-0.33'"):
        Deployment.of(Scenario.of({**TABLE, "engine": "vllm-0.34"}))


@pytest.mark.parametrize("setting", [{"watermark": 0.01}, {"prefill_schedule_interval": 2}, {"max_num_active_seqs": 8},
                                     {"long_prefill_token_threshold_adaptive": True}])
def test_a_setting_that_a_release_lacks_is_refused(setting):
    defaults("vllm-0.33", **setting).complete()
    with pytest.raises(ConfigError, match=f"serve.{next(iter(setting))}: vLLM 0.22 has no such setting"):
        defaults("vllm-0.22", **setting).complete()


def test_releases_differ_in_whether_a_whole_prompt_must_fit():
    assert defaults("vllm-0.33").complete().scheduler_reserve_full_isl is True
    assert defaults("vllm-0.18").complete().scheduler_reserve_full_isl is False
    assert defaults("vllm-0.18", scheduler_reserve_full_isl=True).complete().scheduler_reserve_full_isl is True


@pytest.mark.parametrize(("engine", "share", "reserve", "states"), [
    ("vllm-0.18", 0.9, False, False), ("vllm-0.19", 0.9, True, False), ("vllm-0.22", 0.92, True, False),
    ("vllm-0.33", 0.92, True, True)])
def test_defaults_of_vllm_by_release(engine, share, reserve, states):
    """Of the wheels 0.18.1, 0.19.0, 0.22.0 and 0.33.0: config/cache.py, config/scheduler.py, config/model.py."""
    complete = defaults(engine).complete()
    assert (complete.gpu_memory_utilization, complete.scheduler_reserve_full_isl) == (share, reserve)
    assert complete.enable_prefix_caching is True
    hybrid = Defaults(EngineSettings(), engine_of(engine), model_of("qwen3-next-80b-a3b"), gpu_of("h200")).complete()
    assert hybrid.enable_prefix_caching is states


@pytest.mark.parametrize(("gpu", "settings", "static"), [
    ("h100", {}, 0.835), ("h200", {}, 0.907), ("b200", {}, 0.857), ("l4", {}, 0.837),
    ("h200", {"tensor_parallel_size": 4}, 0.9), ("h200", {"max_cudagraph_capture_size": 32}, 0.91),
    ("h200", {"tensor_parallel_size": 4, "data_parallel_size": 2,
              "sglang": SglangSettings(chunked_prefill_size=16384)}, 0.779)])
def test_sglang_works_out_its_share_for_weights_and_kv(gpu, settings, static):
    """(memory - reserved) / memory, with 512 + 1.5 chunk + 2 graph + 128 GPUs MiB (0.5.8, server_args.py)."""
    complete = defaults("sglang-0.5", gpu, **settings).complete()
    assert complete.sglang.mem_fraction_static == static < complete.gpu_memory_utilization


def test_tensorrt_llm_gives_kv_nine_tenths_of_what_is_free():
    serve = defaults("trtllm-1.0").complete()
    gpu, model = gpu_of("h200"), model_of("llama-3.1-8b")
    part = memory(model, shards_of(model, serve)[0], gpu, serve)
    free = gpu.memory - part.weights - part.activations - RESERVED
    assert part.free == pytest.approx(0.9 * free, rel=1e-3)


def test_graphs_are_as_large_as_release_and_gpu_have_them():
    """512 tokens, 1,024 on Blackwell since 0.33, which has a graph of exactly max_num_seqs, too."""
    sizes = {(engine, gpu): defaults(engine, gpu, max_num_seqs=601).complete().cudagraph_capture_sizes
             for engine in ("vllm-0.22", "vllm-0.33") for gpu in ("h200", "b200")}
    assert [each[-1] for each in sizes.values()] == [512, 512, 512, 1024]
    assert [601 in each for each in sizes.values()] == [False, False, False, True]
    assert defaults("sglang-0.5", "h100").complete().cudagraph_capture_sizes[-1] == 256


def test_sglang_starts_with_less_cache_than_its_longest_context():
    """An 8B model in BF16 on an L4, which vLLM refuses to start."""
    made = Deployment.of(Scenario.of({**TABLE, "model": "llama-3.1-8b", "gpu": "l4", "engine": "sglang-0.5"}))
    assert 10_000 < made.serve.max_model_len == made.kv_blocks - 1 < made.model.max_length


@pytest.mark.parametrize(("binds", "tokens"), [(False, 500), (True, 100)])
def test_the_prefill_threshold_binds_a_lone_request_in_some_releases(binds, tokens):
    limits = Limits(2048, 16, 4096, long_prefill_token_threshold=100, cap_binds_lone_request=binds)
    scheduler = Scheduler(limits, Priority(), BlockCache(100, 16))
    scheduler.add(Job.of(Request(0, 0.0, 500, 4), 0, 16))
    assert [entry.tokens for entry in scheduler.schedule(0.0).entries] == [tokens]


@pytest.mark.parametrize(("ends", "served"), [(False, [1]), (True, [])])
def test_a_request_that_preempts_itself_ends_the_turn_in_some_releases(ends, served):
    """Request 0 is less urgent, came first, and needs a third block when request 1 has it."""
    limits = Limits(64, 4, 4096, scheduler_reserve_full_isl=False, self_preemption_ends_turn=ends)
    scheduler = Scheduler(limits, Priority(), BlockCache(3, 16))
    scheduler.add(Job.of(Request(0, 0.0, 31, 8, priority=1), 0, 16))
    scheduler.update(scheduler.schedule(0.0), 0)
    scheduler.add(Job.of(Request(1, 1.0, 8, 8, priority=0), 1, 16))
    scheduler.update(scheduler.schedule(0.0), 1)
    schedule = scheduler.schedule(0.0)
    assert [job.request.id for job in schedule.preempted] == [0]
    assert [entry.job.request.id for entry in schedule.all_entries()] == served
