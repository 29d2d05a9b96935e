"""What SGLang fills in, held against its own ServerArgs, and which settings are another engine's.

`sglang_server_args.jsonl` has what ServerArgs of the wheel 0.5.23 resolves on a CPU, with stand-ins for the GPU: its
memory and compute capability, and CUDA's default of graphs for prompts.
"""

import json
from pathlib import Path

import pytest
from attrs import evolve

from ksim.cost.graphs import Launching
from ksim.flow.batch import Batch
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Defaults, Deployment
from ksim.scenario.hardware import engine_of, gpu_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sglang import decode_graphs
from ksim.specs.settings import EngineSettings
from tests.scenario.tables import TABLE

ROWS = [json.loads(line) for line in (Path(__file__).parent / "sglang_server_args.jsonl").read_text().splitlines()]


def defaults(engine="sglang-0.5.23", model="llama-3.1-8b", gpu="h100", **serve):
    return Defaults(structure(EngineSettings, serve), engine_of(engine), model_of(model), gpu_of(gpu))


def ours(args):
    """The settings that the arguments of ServerArgs stand for."""
    args, serve = dict(args), {}
    ranks = args.pop("dp_size", 1)
    serve |= {"tensor_parallel_size": args.pop("tp_size", 1) // ranks, "data_parallel_size": ranks,
              "pipeline_parallel_size": args.pop("pp_size", 1)}
    args.pop("enable_dp_attention", None), args.pop("nnodes", None)
    if args.pop("moe_a2a_backend", None):
        serve |= {"all2all_backend": "deepep_low_latency", "enable_expert_parallel": True}
    for flag, key in (("enable_two_batch_overlap", "enable_dbo"), ("disable_cuda_graph", "enforce_eager"),
                      ("cuda_graph_max_bs_decode", "max_cudagraph_capture_size")):
        if flag in args:
            serve[key] = args.pop(flag)
    if mode := args.pop("disaggregation_mode", None):
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[mode]
        serve["kv_transfer_config"] = {"kv_connector": "sglang", "kv_role": role}
    if args.pop("speculative_algorithm", None):
        serve["speculative_config"] = {"method": "mtp", "num_speculative_tokens": args["speculative_num_steps"],
                                       "acceptance": {"name": "geometric", "rate": 0.8}}
    args = {key: value for key, value in args.items() if not key.startswith("speculative")}
    return {**serve, **({"sglang": args} if args else {})}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}, {row['gpu']}, {row['args']}")
def test_settings_are_what_server_args_says(row):
    complete = defaults(model=row["model"], gpu=row["gpu"], **ours(row["args"])).complete()
    rank, says = complete.sglang.on_rank(complete.data_parallel_size), row["says"]
    largest = max(complete.cudagraph_capture_sizes, default=0) // (1 + complete.drafted)
    # Of running requests and slots, it says what does not follow from the KV cache.
    open_ = {key for key in ("max_running_requests", "disaggregation_decode_extra_slots") if says[key] is None}
    found = {key: getattr(rank, key) for key in says if key not in ("decode_graphs", *open_)}
    if "max_running_requests" in found:
        found["max_running_requests"] = complete.sglang.max_running_requests
    assert found == pytest.approx({key: says[key] for key in found})
    assert largest == says["decode_graphs"]


@pytest.mark.parametrize("row", ROWS[::16], ids=lambda row: f"{row['model']}, {row['gpu']}, {row['args']}")
def test_complete_settings_stay_as_they_are(row):
    once = defaults(model=row["model"], gpu=row["gpu"], **ours(row["args"]))
    assert Defaults(once.complete(), once.version, once.model, once.gpu).complete() == once.complete()


def test_what_does_not_follow_is_refused():
    once = defaults()
    with pytest.raises(ConfigError, match=r"^serve.max_num_seqs: is 3, and 2048 follows from"):
        Defaults(evolve(once.complete(), max_num_seqs=3), once.version, once.model, once.gpu).complete()


def test_settings_of_all_engines_follow():
    complete = defaults(sglang={"chunked_prefill_size": 4096, "max_running_requests": 100, "context_length": 8192,
                                "page_size": 16, "disable_overlap_schedule": True, "radix_eviction_policy": "lfu",
                                "disable_radix_cache": True}).complete()
    assert (complete.max_num_batched_tokens, complete.max_num_seqs, complete.max_model_len) == (4096, 100, 8192)
    assert (complete.block_size, complete.async_scheduling, complete.enable_prefix_caching) == (16, False, False)
    assert (complete.prefix_cache, complete.eviction) == ("sglang", Choice("lfu"))


def test_without_chunks_a_step_has_max_prefill_tokens():
    complete = defaults(sglang={"chunked_prefill_size": -1, "max_prefill_tokens": 20000}).complete()
    assert (complete.max_num_batched_tokens, complete.enable_chunked_prefill) == (20000, False)


def test_ranks_of_attention_share_chunks_and_requests_and_expect_less():
    complete = defaults(model="deepseek-v3", gpu="h200", data_parallel_size=8, sglang={"max_running_requests": 512}
                        ).complete()
    assert (complete.sglang.max_running_requests, complete.max_num_seqs) == (512, 64)
    assert (complete.sglang.chunked_prefill_size, complete.max_num_batched_tokens) == (8192, 1024)
    assert complete.sglang.on_rank(8).schedule_conservativeness == pytest.approx(0.3)


def deployed(**more):
    return Deployment.of(Scenario.of({**TABLE, "model": "llama-3.1-8b", "engine": "sglang-0.5.23", "gpu": "h100",
                                      **more}))


def test_requests_run_by_the_kv_cache_and_the_context():
    """512 x tokens / context, from 2048 to 4096, and no more than half the tokens (resolve_max_num_reqs)."""
    wide, long = deployed(serve={"sglang": {"context_length": 65536}}), deployed()
    assert wide.serve.max_num_seqs == 512 * wide.kv_blocks // 65536 > 2048
    assert long.serve.max_num_seqs == 2048
    few = deployed(serve={"sglang": {"max_total_tokens": 1000}})
    assert (few.kv_blocks, few.serve.max_num_seqs) == (1000, 500)


def test_the_kv_cache_has_the_static_share_less_weights_in_whole_pages():
    made = deployed(gpu="b200")
    assert made.serve.block_size == 64
    assert 1_000_000 < made.kv_blocks * 64 < 1_200_000
    assert deployed(gpu="b200", serve={"sglang": {"max_total_tokens": 100_000}}).kv_blocks == 100_000 // 64


def test_windows_with_a_pool_of_their_own_leave_more_tokens():
    windows = {ratio: deployed(model="gpt-oss-20b", serve={"sglang": {"swa_full_tokens_ratio": ratio}}).kv_blocks
               for ratio in (0.5, 1.0)}
    assert windows[0.5] == pytest.approx(windows[1.0] * 2 / 1.5, rel=1e-3)


def test_states_bound_how_many_requests_run():
    assert 20 < deployed(model="qwen3.5-27b", gpu="h200").serve.max_num_seqs < 1000


def test_decode_graphs_are_closer_with_drafts():
    assert decode_graphs(40, 0) == (1, 2, 4, 8, 12, 16, 24, 32, 40)
    assert decode_graphs(14, 3) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)


@pytest.mark.parametrize("engine, model, serve, largest", [
    ("sglang-0.5.8", "glm-5", {}, 0), ("sglang-0.5.10", "glm-5", {}, 2048), ("sglang-0.5.23", "glm-5", {}, 8192),
    ("sglang-0.5.10", "llama-3.1-8b", {}, 16384), ("sglang-0.5.10", "qwen3.5-397b-a17b", {}, 0),
    ("sglang-0.5.23", "qwen3.5-397b-a17b", {}, 16384), ("sglang-0.5.10", "glm-5", {"enforce_eager": True}, 0),
    ("sglang-0.5.10", "glm-5", {"tensor_parallel_size": 1, "data_parallel_size": 8, "enable_expert_parallel": True}, 0),
    ("sglang-0.5.10", "glm-5", {"cudagraph_mode": "FULL_DECODE_ONLY"}, 0),
])
def test_prompts_run_in_piecewise_graphs_where_their_release_captures_some(engine, model, serve, largest):
    (timer,) = deployed(engine=engine, model=model, gpu="b200", serve={"tensor_parallel_size": 8, **serve}).timers()
    assert max(timer.graphs.piecewise, default=0) == largest
    launching, tokens = timer.graphs.of(Batch.of((950, 0)))
    assert (launching, tokens) == (Launching.PIECEWISE, 960) if largest else launching.value != "CUDA graph"
    assert bool(timer.graphs.full) == (not serve.get("enforce_eager", False))


def test_a_prefill_server_has_graphs_of_prompts_alone():
    sides = {"kv_connector": "sglang", "kv_role": "kv_producer"}
    for engine, mode in (("sglang-0.5.10", "NONE"), ("sglang-0.5.23", "PIECEWISE")):
        one = deployed(engine=engine, gpu="b200", serve={"kv_transfer_config": sides})
        assert one.serve.cudagraph_mode == mode and not one.timers()[0].graphs.full


def test_rows_say_where_values_come_from():
    rows = {row.setting: row for row in defaults(gpu="b200", sglang={"page_size": 1}).explain()}
    assert "TRT-LLM MHA take no pages of 1 tokens" in rows["sglang.page_size"].source
    assert "179.1 GiB" in rows["sglang.mem_fraction_static"].source
    assert rows["max_num_seqs"].source == "sglang.max_running_requests"


@pytest.mark.parametrize(("key", "value", "named"), [
    ("max_num_batched_tokens", 4096, "chunked_prefill_size"), ("max_num_seqs", 64, "max_running_requests"),
    ("max_model_len", 4096, "context_length"), ("block_size", 16, "page_size"),
    ("enable_prefix_caching", False, "disable_radix_cache"), ("prefix_cache", "sglang", "disable_radix_cache"),
    ("async_scheduling", False, "disable_overlap_schedule"), ("enable_chunked_prefill", False, "chunked_prefill_size"),
    ("gpu_memory_utilization", 0.9, "mem_fraction_static"), ("num_gpu_blocks_override", 100, "max_total_tokens"),
    ("eviction", "lru", "radix_eviction_policy"), ("watermark", 0.1, "schedule_conservativeness"),
    ("admission", "future_memory", "schedule_conservativeness"), ("scheduling_policy", "priority",
                                                                  "enable_priority_scheduling"),
    ("scheduling_policy", "prefill_first", "schedule_policy"),
])
def test_settings_of_vllms_scheduler_are_refused_with_sglangs_name(key, value, named):
    with pytest.raises(ConfigError, match=rf"^serve\.{key}: .*serve\.sglang\.{named}\b"):
        defaults(**{key: value}).complete()


def test_all_refused_settings_are_named_at_once():
    with pytest.raises(ConfigError, match=r"^serve.max_num_seqs: .*; likewise watermark \(schedule_conserv"):
        defaults(max_num_seqs=4, watermark=0.1).complete()


def test_a_policy_that_proposes_batches_is_refused():
    with pytest.raises(ConfigError, match=r"^serve.scheduling_policy: 'stall_free' proposes batches"):
        defaults(scheduling_policy="stall_free").complete()


@pytest.mark.parametrize(("key", "value", "named"), [
    ("chunked_prefill_size", 4096, "max_num_batched_tokens"), ("page_size", 16, "block_size"),
    ("max_running_requests", 4, "max_num_seqs"), ("schedule_policy", "lpm", "scheduling_policy"),
])
def test_settings_of_sglangs_scheduler_are_refused_with_vllms_name(key, value, named):
    with pytest.raises(ConfigError, match=rf"^serve\.sglang\.{key}: .*vLLM calls it serve\.{named}$"):
        defaults("vllm-0.33", sglang={key: value}).complete()


def test_other_settings_of_sglangs_scheduler_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"^serve\.sglang\.num_reserved_decode_tokens: is a setting of SGLang's"):
        defaults("vllm-0.33", sglang={"num_reserved_decode_tokens": 4}).complete()
    with pytest.raises(ConfigError, match=r"^serve\.sglang\.page_size: is a setting of SGLang's"):
        defaults("trtllm-1.2", sglang={"page_size": 4}).complete()


def test_a_policy_with_an_order_of_its_own_runs_on_sglangs_scheduler():
    assert defaults(scheduling_policy="srpt_predicted").complete().scheduling_policy == Choice("srpt_predicted")


@pytest.mark.parametrize(("given", "serve", "said"), [
    ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, {}, "schedule_policy of 'fcfs' or 'lof'"),
    ({"retraction_policy": "priority"}, {}, "requires enable_priority_scheduling"),
    ({"chunked_prefill_size": 1000, "page_size": 64}, {}, "must be divisible by page_size"),
    ({"chunked_prefill_size": 0}, {}, "or -1 to cut no prompt"),
    ({"schedule_policy": "routing-key"}, {}, "is not simulated"), ({"schedule_policy": "sjf"}, {}, "schedule_policy"),
    ({"context_length": 10**6}, {}, "greater than the derived context length"),
    ({"min_free_slots_delay": 4}, {"pipeline_parallel_size": 2}, "not supported with pipeline parallelism"),
    ({"swa_full_tokens_ratio": 0.0}, {}, "swa_full_tokens_ratio"), ({"schedule_conservativeness": -1.0}, {}, "must be"),
    ({"radix_eviction_policy": "tlru"}, {}, "radix_eviction_policy"), ({"prefill_decode_interval": -1}, {}, "must be"),
    ({"disable_radix_cache": True}, {"kv_transfer_config": {"kv_connector": "HiCache", "kv_role": "kv_both"}},
     "mutually exclusive"),
])
def test_what_sglang_refuses_is_refused(given, serve, said):
    with pytest.raises(ConfigError, match=said) as refused:
        defaults(sglang=given, **serve).complete()
    assert "sglang" in str(refused.value) and "\n" not in str(refused.value)
