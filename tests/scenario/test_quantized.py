"""Quantized weights from the settings to prices: what is refused, what a product launches, and what prices obey."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.basic import Gemm
from ksim.features.drafts import drafter_of, drafter_shard
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles import estimate
from ksim.oracles.learned import Learned
from ksim.oracles.measured import Measured
from ksim.scenario.defaults import Defaults, Deployment
from ksim.scenario.hardware import engine_of, gpu_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.specs.configs import SpeculativeConfig
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import QUANTIZATIONS, Shard
from tests.models import model_of as known
from tests.models import table_of
from tests.properties import examples
from tests.scenario.tables import TABLE

INTEGERS = [name for name, each in QUANTIZATIONS.items() if each.weights.element in (DType.INT4, DType.INT8)]


def ops(quantization, tokens, model="llama-3.2-1b"):
    precision = EngineSettings(quantization=quantization).precision
    blocks = model_of(model).graph(tokens, tokens, Shard(precision=precision)).blocks
    return {op.label: op.kernel for block in blocks for op in block.ops}


def remarks(**table):
    return " ".join(Deployment.of(Scenario.of({**TABLE, **table})).remarks)


@pytest.mark.parametrize("gpu", ["b200", "rtx-pro-6000"])
def test_blackwell_has_no_kernel_for_int8_activations(gpu):
    settings = EngineSettings(quantization="int8_w8a8")
    defaults = Defaults(settings, engine_of("vllm-0.33"), model_of("llama-3.1-8b"), gpu_of(gpu))
    with pytest.raises(ConfigError, match="no INT8 on a"):
        defaults.complete()


def complete(model, ways, quantization):
    settings = EngineSettings(quantization=quantization, tensor_parallel_size=ways)
    return Defaults(settings, engine_of("vllm-0.33"), model_of(model), gpu_of("h100")).complete()


@pytest.mark.parametrize("quantization", ["awq", "gptq", "int4_w4a16_g128", "int8_w8a16_g128_zp"])
def test_ranks_have_whole_groups(quantization):
    """An MLP of 29,568 has 3,696 on each of 8 ranks, which 128 does not divide, and one of 27,648 has 27 groups."""
    assert complete("qwen2.5-32b", 8, quantization).quantization == quantization
    with pytest.raises(ConfigError, match="input_size_per_partition = 3696 is not divisible by group_size = 128"):
        complete("qwen2.5-72b", 8, quantization)


@pytest.mark.parametrize("quantization", ["fp8", "int8_w8a8", "int4_w4a16_channel", "bitsandbytes"])
def test_formats_without_groups_are_shared_out_as_any(quantization):
    assert complete("qwen2.5-72b", 8, quantization).quantization == quantization


@pytest.mark.parametrize("gpu, quantization, served", [
    ("a100-80g", "fp8", "fp8_w8a16"), ("t4", "fp8_block", "fp8_block_w8a16"), ("h200", "nvfp4", "nvfp4_w4a16"),
    ("l4", "modelopt_fp4", "nvfp4_w4a16"), ("l4", "fp8", "fp8"), ("b200", "nvfp4", "nvfp4"), ("t4", "awq", "awq"),
    ("t4", "gptq", "gptq"), ("t4", "bitsandbytes", "bitsandbytes"), ("t4", "int8_w8a8", "int8_w8a8")])
def test_gpus_without_a_format_take_weights_alone(gpu, quantization, served):
    """Of the same size: Marlin repacks them (marlin_utils_fp8.py and _fp4.py, from compute capability 7.5 on)."""
    settings, model = EngineSettings(quantization=quantization), model_of("llama-3.2-1b")
    complete = Defaults(settings, engine_of("vllm-0.33"), model, gpu_of(gpu)).complete()
    assert complete.quantization == served
    assert model.weights(Shard(precision=complete.precision)) == model.weights(Shard(precision=settings.precision))
    told = "does not multiply in" in remarks(serve={"quantization": quantization}, gpu=gpu)
    assert told is (served != quantization)


def test_tensorrt_llm_does_not_fall_back():
    settings = EngineSettings(quantization="fp8")
    complete = Defaults(settings, engine_of("trtllm-1.2"), model_of("llama-3.2-1b"), gpu_of("a100-80g")).complete()
    assert complete.quantization == "fp8"


@pytest.mark.parametrize("gpu, activations", [("a100-80g", DType.BF16), ("h100", DType.FP8)])
def test_a_draft_model_in_fp8_falls_back_with_its_target(gpu, activations, tmp_path):
    path, model = tmp_path / "draft.json", model_of("llama-3.1-8b")
    path.write_text(json.dumps({**table_of("llama-3.2-1b"), "quantization_config": {"quant_method": "fp8"}}))
    speculation = SpeculativeConfig(2, "draft_model", str(path), rejection_sample_method="synthetic",
                                    synthetic_acceptance_length=2.0)
    settings = EngineSettings(quantization="fp8", speculative_config=speculation)
    serve = Defaults(settings, engine_of("vllm-0.33"), model, gpu_of(gpu)).complete()
    precision = drafter_shard(drafter_of(model, serve), serve, Shard(precision=serve.precision)).precision
    assert (precision.weights, precision.activations) == (DType.FP8, activations)


@pytest.mark.parametrize("gpu, served, activations", [
    ("h200", "deepseek_v4_fp8_w4a16", DType.BF16), ("b200", "deepseek_v4_fp8", DType.FP8)])
def test_experts_of_deepseek_v4_have_a_format_of_their_own(gpu, served, activations):
    """Beside FP8 in blocks: of the 256 experts of 43 layers, three matrices of 2,048 x 4,096 each in MXFP4."""
    v4, experts = known("deepseek-ai/DeepSeek-V4-Flash"), 43 * 256 * 3 * 2048 * 4096
    complete = Defaults(EngineSettings(), engine_of("vllm-0.33"), v4, gpu_of(gpu)).complete()
    precision = complete.precision
    assert complete.quantization == served and precision.of("experts") == (DType.MXFP4, activations)
    assert precision.of("attention") == (DType.FP8_BLOCK, DType.FP8)
    saved = v4.weights(Shard(precision=EngineSettings(quantization="fp8_block").precision)) - v4.weights(
        Shard(precision=precision))
    assert saved == pytest.approx(experts * (DType.FP8_BLOCK.bytes - DType.MXFP4.bytes))
    kernels = {op.label: op.kernel for block in v4.graph(8, 8, Shard(precision=precision)).blocks for op in block.ops}
    assert (kernels["experts_gate_up"].weights, kernels["experts_gate_up"].activations) == (DType.MXFP4, activations)


def test_act_order_permutes_activations_and_bitsandbytes_unpacks_weights():
    plain, ordered, packed = (ops(name, 8) for name in ("gptq", "int4_w4a16_g128_zp_act_order", "bitsandbytes"))
    assert {*ordered} - {*plain} == {f"{name}_permute" for name in ("qkv", "o_proj", "gate_up", "down")}
    assert {*packed} - {*plain} == {f"{name}_dequantize" for name in ("qkv", "o_proj", "gate_up", "down")}
    assert packed["down"].weights is DType.BF16 and plain["down"].weights is DType.INT4_G128_ZP
    unpacked = packed["down_dequantize"]
    assert unpacked.write_bytes == 2 * packed["down"].n * packed["down"].k
    assert unpacked.read_bytes == pytest.approx(unpacked.write_bytes * DType.NF4_DOUBLE.bytes / 2)


def test_a_single_row_meets_packed_weights():
    """bitsandbytes has a kernel for it (`gemv_4bit`)."""
    single = ops("bitsandbytes", 1)
    assert single["down"].weights is DType.NF4_DOUBLE and "down_dequantize" not in single


def test_a_run_says_which_products_nobody_has_measured():
    serve = {"quantization": "awq"}
    assert "nobody has measured these products on H100" in remarks(serve=serve, gpu="h100")
    assert "nobody has measured" not in remarks(serve=serve, gpu="a100-80g")
    assert "TensorRT-LLM's kernels were measured on A100" in remarks(serve=serve, gpu="a100-80g")
    assert "TensorRT-LLM's" not in remarks(serve=serve, gpu="a100-80g", engine="trtllm-1.0")
    assert "nobody has measured" not in remarks(serve={"quantization": "none"}, gpu="h100")
    assert "dequantization of bitsandbytes" in remarks(serve={"quantization": "bitsandbytes"}, gpu="h100")


@pytest.mark.parametrize("gpu", ["a100-80g", "h100", "l40s", "b200"])
@given(data=st.data())
@examples(15)
def test_prices_of_integers_grow_with_rows_and_save_what_they_read(gpu, data):
    """In decodes of layers of 4,096 and more, weights of 4 or 8 bits take no longer than those of 16, within the
    interval."""
    name = data.draw(st.sampled_from([each for each in INTEGERS if QUANTIZATIONS[each].activations is DType.BF16]))
    n, k = (128 * data.draw(st.integers(32, 96)) for _ in "nk")
    weights, device = QUANTIZATIONS[name].weights, gpu_of(gpu)
    for oracle in (Measured(), Learned()):
        few, many = (estimate(oracle, Gemm(m, n, k, weights), device) for m in (8, 4096))
        plain = estimate(oracle, Gemm(8, n, k), device)
        assert few.low <= few.seconds <= few.high and few.seconds < many.seconds
        assert few.low < plain.high


def test_int8_activations_are_priced_as_the_kernels_for_fp8_where_nobody_measured_them():
    def source(gpu):
        return estimate(Measured(), Gemm(64, 4096, 4096, DType.INT8, DType.INT8), gpu_of(gpu)).source

    assert source("a100-80g") == "measured"
    assert source("h100") == "measured, as gemm/fp8"
