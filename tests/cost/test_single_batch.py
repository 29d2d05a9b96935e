"""SGLang's single-batch overlap: what runs beside DeepEP's messages, and what is hidden."""

import pytest
from attrs import evolve

from ksim.compute.graph import Collective
from ksim.cost.single_batch import StreamPair, side_by_side
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario

RANKS = 8


def scenario(gpu: str, model: str = "deepseek-v3", **serve: object) -> Scenario:
    return Scenario.of({"model": model, "gpu": gpu, "serve": serve, "workload": ANY_WORKLOAD})


def deployment(gpu: str, model: str = "deepseek-v3", **serve: object) -> Deployment:
    return Deployment.of(scenario(
        gpu, model, data_parallel_size=RANKS, enable_expert_parallel=True, all2all_backend="deepep_low_latency",
        max_num_batched_tokens=512, max_num_seqs=512, **serve))


def step(gpu: str, decodes: str, **serve: object):
    (timer,) = deployment(gpu, **serve).timers()
    return timer.step_cost(Batch.parse(decodes, ""))


def costs(step):
    """The kernels of a step by label, those of one layer."""
    return {kernel.label: kernel for block in step.blocks for kernel in block.kernels}


FP4 = {"quantization": "nvfp4", "unquantized": ["attention_inputs"], "kv_cache_dtype": "fp8"}


@pytest.mark.parametrize("gpu, serve, beside", [
    ("h200", {}, {"dispatch": ["shared_gate_up_quantize", "shared_gate_up", "shared_act", "shared_down_quantize",
                               "shared_down", "shared_add"], "experts_combine": ["experts_down"]}),
    ("gb200", {}, {"experts_combine": ["shared_gate_up_quantize", "shared_gate_up", "shared_act",
                                       "shared_down_quantize", "shared_down", "shared_add"]}),
    ("gb200", FP4, {"experts_combine": ["experts_down", "shared_gate_up_quantize", "shared_gate_up", "shared_act",
                                        "shared_down_quantize", "shared_down", "shared_add"]}),
])
def test_what_runs_beside_what_depends_on_gpu_and_format(gpu, serve, beside):
    """SGLang 0ac832c3, batch_overlap/single_batch_overlap.py."""
    made = deployment(gpu, **serve)
    layer = made.model.graph(64, 64, made.shards[0]).blocks[-2]
    together = [op for op in side_by_side(layer.ops, gpu_of(gpu)) if isinstance(op, StreamPair)]
    assert {group.message.label: [op.label for op in group.computed] for group in together} == beside
    flat = [one for op in side_by_side(layer.ops, gpu_of(gpu))
            for one in ((*op.computed, op.message) if isinstance(op, StreamPair) else (op,))]
    assert sorted(op.label for op in flat) == sorted(op.label for op in layer.ops)


@pytest.mark.parametrize("gpu, decodes", [("h200", "512x1000"), ("h200", "1x1000"), ("gb200", "512x1000")])
def test_of_two_streams_the_longer_one_counts(gpu, decodes):
    """Down GEMMs on fewer SMs take no less; the step is shorter by what the shorter stream takes, and no more."""
    plain, overlapping = step(gpu, decodes), step(gpu, decodes, enable_single_batch_overlap=True)
    assert overlapping.seconds < plain.seconds
    alone, beside = costs(plain), costs(overlapping)
    hidden = {label for label, kernel in beside.items() if kernel.hidden}
    assert hidden and hidden <= {"dispatch", "experts_combine", "experts_down"} | {
        label for label in alone if label.startswith("shared_")}
    assert all(beside[label].lasts >= alone[label].lasts * (1 - 1e-9) for label in alone)
    saved = sum(alone[label].lasts for label in hidden) * 58
    slower = sum(beside[label].lasts - alone[label].lasts for label in alone) * 58
    assert plain.seconds - overlapping.seconds == pytest.approx(saved - slower, rel=0.02, abs=2e-5)
    assert overlapping.joules == pytest.approx(plain.joules, rel=1e-9)


def streams(model: str, tokens: int, dual_stream: int, prompt: bool = False):
    """A step of so many tokens of a model on 8 GPUs, with streams of their own for shared experts or without."""
    made = Deployment.of(scenario("h200", model, tensor_parallel_size=8, max_num_seqs=512))
    (timer,) = made.timers()
    batch = Batch.parse("" if prompt else f"{tokens}x1000", f"{tokens}+0" if prompt else "")
    return evolve(timer, dual_stream=dual_stream).step_cost(batch)


@pytest.mark.parametrize("model, layers", [("deepseek-v3", 58), ("qwen3.5-397b-a17b", 60), ("glm-5", 75)])
@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_in_graphs_of_decodes_shared_experts_run_beside_the_routed_ones(model, layers, tokens):
    plain, dual = streams(model, tokens, 0), streams(model, tokens, 512)
    alone, hidden = costs(plain), {label for label, kernel in costs(dual).items() if kernel.hidden}
    shared = {label for label in alone if label.startswith("shared_") and label != "shared_add"}
    routed = {label for label in alone if label.startswith("experts_") or label in ("topk", "combine")} - {
        "experts_all_reduce"}
    shorter = min((shared, routed), key=lambda labels: sum(alone[label].lasts for label in labels))
    assert hidden == shorter
    assert plain.seconds - dual.seconds == pytest.approx(layers * sum(alone[label].lasts for label in hidden))
    assert dual.joules == pytest.approx(plain.joules, rel=1e-9)


@pytest.mark.parametrize("model, tokens, prompt", [
    ("deepseek-v3", 1024, True), ("deepseek-v3", 64, True), ("deepseek-v3", 504, False), ("qwen3-30b-a3b", 64, False)])
def test_steps_without_graphs_of_so_few_tokens_have_one_stream(model, tokens, prompt):
    assert streams(model, tokens, 500, prompt).seconds == streams(model, tokens, 0, prompt).seconds


def test_nvfp4_tokens_are_a_quarter_as_large_as_those_in_bf16():
    sent = []
    for dispatch in (False, True):
        made = deployment("gb200", **FP4, moe_nvfp4_dispatch=dispatch)
        ops = [op for block in made.model.graph(64, 64, made.shards[0]).blocks for op in block.ops]
        sent.append({op.label: op.kernel.bytes for op in ops if isinstance(op.kernel, Collective)})
    assert sent[1]["dispatch"] == sent[0]["dispatch"] * 0.5625 / 2
    assert sent[1]["experts_combine"] == sent[0]["experts_combine"]


@pytest.mark.parametrize("setting", ["enable_single_batch_overlap", "moe_nvfp4_dispatch"])
def test_both_are_about_deepep(setting):
    with pytest.raises(ConfigError, match=f"{setting} is about tokens that DeepEP sends"):
        scenario("h200", **{setting: True})


def test_layers_with_neither_messages_nor_shared_experts_are_left_as_they_are():
    made = deployment("h200", model="qwen3-30b-a3b")
    alone = Deployment.of(scenario("h200", "qwen3-30b-a3b"))
    (layer,) = [block for block in alone.model.graph(64, 64, alone.shards[0]).blocks if block.repeat > 1]
    assert list(side_by_side(layer.ops, made.gpu)) == list(layer.ops)
