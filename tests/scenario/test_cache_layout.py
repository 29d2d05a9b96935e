"""How layers share one pool of KV blocks: groups, pages and numbers of blocks by vLLM's rules.

Worked by hand from vLLM 0.33's v1/core/kv_cache_planning.py (`_get_kv_cache_groups_uniform_page_size`,
`unify_kv_cache_spec_page_size`), v1/kv_cache_interface.py (`max_memory_usage_bytes`) and platforms/interface.py
(`_align_hybrid_block_size`).
"""

from typing import Any

import pytest
from attrs import evolve

from ksim.compute.graph import LayerCache
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.scenario.cache_layout import CacheLayout, state_block_tokens
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.scenario.sizing import memory
from ksim.simulation.simulate import simulate
from ksim.specs.settings import EngineSettings

COMPLETE = EngineSettings(block_size=16, max_model_len=1024, max_num_batched_tokens=256, max_num_seqs=8,
                          async_scheduling=False)
FULL, STATE = LayerCache(100.0), LayerCache(sequence_bytes=1500.0)
WINDOW, CHUNK = LayerCache(100.0, window=64), LayerCache(100.0, chunk=64)


def deployment(model: str, **serve: Any) -> Deployment:
    return Deployment.of(Scenario.of({"model": model, "gpu": "h200", "workload": ANY_WORKLOAD, "serve": serve}))


def groups(*stages: list[LayerCache], **serve: Any) -> list[tuple[str, int, tuple[int, ...]]]:
    layout = CacheLayout.of(stages, evolve(COMPLETE, **serve))
    return [(group.group.kind, group.group.block_tokens, group.layers) for group in layout.groups]


@pytest.mark.parametrize(("layers", "expected"), [
    ([FULL] * 3, [("full", 16, (3,))]),
    ([WINDOW] * 3, [("window", 16, (3,))]),
    ([WINDOW, FULL] * 2, [("window", 16, (2,)), ("full", 16, (2,))]),
    ([WINDOW] * 5 + [FULL] * 2, [("window", 16, (2,)), ("window", 16, (2,)), ("window", 16, (1,)), ("full", 16, (2,))]),
    ([WINDOW] * 4 + [FULL] * 5, [("window", 16, (4,)), ("full", 16, (5,))]),  # a few more: padded, not split
    ([FULL, LayerCache(50.0)], [("full", 16, (2,))]),  # pages may differ in a single group
    # pages side by side: a window of one size is split, down to the two layers that repeat two sizes
    ([LayerCache(10.0, block_tokens=256), LayerCache(1.0, block_tokens=256), LayerCache(80.0, window=8, block_tokens=4),
      LayerCache(20.0, window=8, block_tokens=4), *[LayerCache(40.0, window=64, block_tokens=64)] * 2],
     [("full", 256, (2,)), ("window", 4, (2,)), ("window", 64, (1,)), ("window", 64, (1,))]),
    ([FULL, LayerCache(50.0, window=64)], [("full", 16, (1,)), ("window", 32, (1,))]),
    ([FULL, STATE, STATE], [("full", 16, (1,)), ("state", 16, (1,)), ("state", 16, (1,))])])
def test_groups_have_layers_of_one_kind_and_equal_numbers_of_them(layers, expected):
    assert groups(layers) == expected


def test_each_stage_of_a_pipeline_has_layers_of_each_group():
    assert groups([FULL, WINDOW, WINDOW], [FULL, WINDOW, WINDOW]) == [
        ("full", 16, (1, 1)), ("window", 16, (1, 1)), ("window", 16, (1, 1))]


@pytest.mark.parametrize(("serve", "one_table"), [
    ({}, False), ({"disable_hybrid_kv_cache_manager": True}, True), ({"prefix_cache": "sglang"}, True),
    ({"eviction": "lfu"}, True), ({"eviction": "vllm"}, False)])
def test_one_table_keeps_all_tokens_of_windows(serve, one_table):
    layout = deployment("gpt-oss-20b", **serve).layout
    assert layout.plain == one_table and len(layout.groups) == 2 - one_table


def test_chunked_attention_has_one_table_unless_it_is_asked_for():
    assert groups([FULL, CHUNK]) == [("full", 16, (2,))]
    assert groups([FULL, CHUNK], disable_hybrid_kv_cache_manager=False) == [("full", 16, (1,)), ("chunk", 16, (1,))]


def test_windows_beside_states_cannot_be_kept_in_one_table():
    with pytest.raises(ConfigError, match="disable_hybrid_kv_cache_manager: cannot be true for a model with windows"):
        groups([FULL, WINDOW, STATE], disable_hybrid_kv_cache_manager=True)


def test_gpt_oss_has_blocks_for_half_of_its_layers_and_keeps_a_window_of_128():
    """12 layers a block, each 16 tokens of 8 KV heads of 64 for keys and values in BF16: 393,216 bytes.

    A request of 131,072 tokens takes 8,192 blocks of full attention and, with 2 x 8,192 tokens in flight, 1,033 of the
    window: ceil((127 + 16,384) / 16) + 1.
    """
    site = deployment("gpt-oss-20b")
    part = memory(site.model, site.shards[0], site.gpu, site.serve)
    assert site.layout.block_bytes == (12 * 16 * 2 * 8 * 64 * 2,)
    assert site.kv_blocks == part.free // 393_216 - 1
    assert site.layout.whole_request(131_072) == 8192 + 1033
    assert site.layout.held(1, 1000) == 63 + 9


@pytest.mark.parametrize(("gpu", "caching", "tokens"), [("h200", True, 320), ("a100-80g", True, 272),
                                                        ("h200", False, 272)])
def test_a_block_of_attention_has_room_for_a_state(gpu, caching, tokens):
    """Qwen3-Next on 4 GPUs: 8 matrices of 128 x 128 and 3 tokens of 2,048 numbers, in BF16, are 274,432 bytes, and a
    token of a layer is 1,024: 268 tokens, rounded up to blocks of 16, or of 64 where FlashInfer keeps states."""
    scenario = {"model": "qwen3-next-80b-a3b", "gpu": gpu, "workload": ANY_WORKLOAD,
                "serve": {"tensor_parallel_size": 4, "enable_prefix_caching": caching, "max_model_len": 8192}}
    site = Deployment.of(Scenario.of(scenario))
    assert site.serve.block_size == tokens
    assert site.layout.block_bytes == (12 * tokens * 1024,)
    assert [group.group.kind for group in site.layout.groups] == ["state" if caching else "full"] * 3 + ["full"]


def test_states_are_padded_to_the_pages_of_attention():
    assert state_block_tokens([FULL, STATE], 16, True) == 16
    assert state_block_tokens([FULL, LayerCache(sequence_bytes=1700.0)], 16, True) == 32
    assert state_block_tokens([FULL, LayerCache(sequence_bytes=1700.0, checkpoint=64)], 16, True) == 64
    assert CacheLayout.of([[FULL, STATE]], COMPLETE).block_bytes == (1600.0,)


def test_a_window_lets_longer_contexts_fit_and_the_message_says_which_would():
    serve = {"max_model_len": 131_072, "gpu_memory_utilization": 0.125}
    with pytest.raises(DoesNotFit, match=r"2 groups of layers, and .* set max_model_len to at most \d+") as caught:
        _ = deployment("gpt-oss-20b", **serve).kv_blocks
    most = int(str(caught.value).partition("at most ")[2].partition(",")[0])
    assert deployment("gpt-oss-20b", **{**serve, "max_model_len": most}).kv_blocks
    with pytest.raises(DoesNotFit):
        _ = deployment("gpt-oss-20b", **{**serve, "max_model_len": most + 16}).kv_blocks


@pytest.mark.parametrize("serve", [{}, {"pipeline_parallel_size": 2}, {"speculative_config": {
    "method": "ngram", "num_speculative_tokens": 2, "acceptance": {"name": "geometric", "rate": 0.5}}}])
def test_engines_of_such_models_serve_all_requests(serve):
    workload = {"synthetic": {"count": 12, "arrivals": {"process": "burst"}, "max_tokens": 900,
                              "prompt": {"kind": "uniform", "low": 100, "high": 600},
                              "output": {"kind": "uniform", "low": 10, "high": 60}}}
    result = simulate(Scenario.of({"model": "gpt-oss-20b", "gpu": "h200", "oracle": "roofline", "workload": workload,
                                   "serve": {"num_gpu_blocks_override": 90, "max_model_len": 1024, **serve}}))
    assert result.summary["completed"] == 12
