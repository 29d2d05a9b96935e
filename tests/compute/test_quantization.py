"""What checkpoints say of their formats, and what that makes of a model's weights."""

import pytest

from ksim.compute.model import Config
from ksim.compute.quantization import Stored, stored
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import model_of_table
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import QUANTIZATIONS, Shard
from tests.models import table_of

ATTENTION_LEFT = [f"model.layers.{layer}.self_attn*" for layer in range(4)]
KIMI = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def read(**table):
    return stored(Config("a.json", {"num_hidden_layers": 4, "quantization_config": table}))


def packed(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def eights(**weights):
    group = {"weights": weights, "input_activations": {"type": weights["type"], "num_bits": 8, "dynamic": True},
             "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize("table, expected", [
    ({"quant_method": "fp8"}, Stored("fp8")),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
     Stored("fp8_block")),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
     Stored("mxfp4", ("attention", "mlp", "shared_experts"))),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.3.mlp.gate"]},
     Stored("nvfp4")),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ATTENTION_LEFT,
      "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, Stored("nvfp4", ("attention",), "fp8")),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn"]},
     Stored("nvfp4", exceptions={0: ("attention",)})),
    (packed(type="int", num_bits=4, group_size=32, strategy="group") | {"ignore": KIMI},
     Stored("int4_w4a16", ("attention", "mlp", "shared_experts"))),
    ({}, Stored()),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
      "modules_to_not_convert": None}, Stored("awq")),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "modules_to_not_convert": ["self_attn"]},
     Stored("int4_w4a16_g64_zp", ("attention",))),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}, Stored("gptq")),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, Stored("int4_w4a16_g32_zp_act_order")),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {"-:.*attn.*": {}}},
     Stored("int8_w8a16_channel_zp", ("attention",))),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": [
        ["self_attn.k_proj", "self_attn.q_proj"], ["self_attn.o_proj"], ["mlp.experts"]]},
     Stored("gptq", ("mlp", "shared_experts"))),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int", "extra_config": {
        "model.layers.1.self_attn.q_proj": {"bits": 16}, "model.layers.1.self_attn.o_proj": {"bits": 16}}},
     Stored("int4_w4a16_g128_zp", exceptions={1: ("attention",)})),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True,
      "llm_int8_skip_modules": ["lm_head", "model.layers.2.mlp"]},
     Stored("bitsandbytes", exceptions={2: ("mlp", "shared_experts", "experts")})),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Stored("bitsandbytes_single")),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Stored("bitsandbytes_8bit")),
    (packed(type="int", num_bits=4, group_size=128, strategy="group", symmetric=True), Stored("int4_w4a16_g128")),
    (packed(type="int", num_bits=4, group_size=64, strategy="group", symmetric=False, actorder="group"),
     Stored("int4_w4a16_g64_zp_act_order")),
    (packed(type="int", num_bits=8, group_size=None, strategy="channel", actorder="weight"),
     Stored("int8_w8a16_channel")),
    (eights(type="int", num_bits=8, strategy="channel") | {"ignore": ["lm_head"]}, Stored("int8_w8a8")),
    (eights(type="float", num_bits=8, strategy="channel"), Stored("fp8")),
    (eights(type="float", num_bits=8, strategy="channel") | {"ignore": [r"re:.*layers\.[0-1]\.self_attn.*"]},
     Stored("fp8", exceptions={0: ("attention",), 1: ("attention",)})),
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}, Stored("fp8", ("attention",))),
    (packed(type="float", num_bits=4, group_size=32, strategy="group") | {"ignore": KIMI},
     Stored("mxfp4", ("attention", "mlp", "shared_experts"))),
    (packed(type="float", num_bits=4, group_size=32, strategy="group"), Stored("mxfp4")),
    (packed(type="float", num_bits=4, group_size=16, strategy="tensor_group"), Stored("nvfp4_w4a16")),
])
def test_what_is_read(table, expected):
    assert read(**table) == expected


@pytest.mark.parametrize("table, problem", [
    ({"quant_method": "quark"}, "quant_method 'quark'"), ({"bits": 4}, "quant_method ''"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "'fp8' in this form"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'modelopt' in this form"),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "weights of 3 bits"),
    ({"quant_method": "awq", "bits": 4, "group_size": 16}, "groups of 16 weights"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, "a quantized head"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*down.*": {"bits": 8}}}, "bits of its own"),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {"mlp": {"bits": 8}}}, "of its own"),
    (packed(type="int", num_bits=4, group_size=48, strategy="group"), "groups of 48 weights"),
    (eights(type="int", num_bits=4, strategy="channel"), "'compressed-tensors' in this form"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "'compressed-tensors' in this form"),
    ({"quant_method": "compressed-tensors", "config_groups": {
        **eights(type="int", num_bits=8, strategy="channel")["config_groups"], "other": packed(
            type="int", num_bits=4, group_size=128, strategy="group")["config_groups"]["group_0"]}}, "in 2 formats"),
])
def test_what_is_not_read_is_refused_with_a_remedy(table, problem):
    with pytest.raises(ConfigError, match="is not read; leave it out and set the engine's quantization instead") as why:
        read(**table)
    assert problem in str(why.value)


@pytest.mark.parametrize("table", [{"quant_method": "awq"}, {"quant_method": "gptq", "bits": 4}])
def test_what_a_format_needs_is_asked_for(table):
    with pytest.raises(ConfigError, match="is missing"):
        read(**table)


def test_a_part_that_is_cut_through_is_refused():
    with pytest.raises(ConfigError, match="quantizes some projections of the attention and not others"):
        read(quant_method="modelopt", quant_algo="NVFP4", ignore=["re:.*q_proj"])


@pytest.mark.parametrize("quantization, gigabytes", [
    ("auto", 65.2),  # of the safetensors files of openai/gpt-oss-120b: "65.2 GB" beside its original weights
    ("none", 233.7),
])
def test_a_checkpoint_weighs_what_its_files_do(model, quantization, gigabytes):
    """MXFP4 for 114.71 B weights of experts, biases and the rest in BF16."""
    oss = model("gpt-oss-120b")
    kept = ("attention", "mlp", "shared_experts")
    precision = EngineSettings(quantization="mxfp4" if quantization == "auto" else "none", unquantized=kept).precision
    assert oss.weights(Shard(precision=precision)) == pytest.approx(gigabytes * 1e9, rel=2e-3)


@pytest.mark.parametrize("name, table, gigabytes", [
    # Of the safetensors files of Qwen/Qwen2.5-7B-Instruct-AWQ and Qwen/Qwen3-32B-AWQ.
    ("qwen2.5-7b", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 5.57),
    ("qwen3-32b", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 19.3),
])
def test_awq_checkpoints_weigh_what_their_files_do(name, table, gigabytes):
    quantized = model_of_table(name, {**table_of(name), "quantization_config": table})
    precision = EngineSettings(quantization=quantized.decoder.quantization).precision
    assert round(quantized.weights(Shard(precision=precision)) / 1e9, len(str(gigabytes).split(".")[1])) == gigabytes


@pytest.mark.parametrize("name", [name for name, each in QUANTIZATIONS.items() if each.weights.element in (
    DType.INT4, DType.INT8)])
def test_packed_weights_scales_zeros_and_places_add_up(small, name):
    """By hand: scales of 16 bits for each group, zero points of a weight's bits, 4 bytes a row for groups apart."""
    found, model = QUANTIZATIONS[name], small()
    precision = EngineSettings(quantization=name).precision
    products = [op for layer in model.decoder.layers for op in layer if getattr(op, "quantized", False)]
    sizes = Sizes(model.decoder.sizes)
    total = model.weights(Shard())
    for op in products:
        count, rows = op.parameters(sizes), sizes.volume(op.depth)
        bits = 4 if found.weights.element is DType.INT4 else 8
        zeros = bits if found.weights.label.endswith("_zp") else 0
        scales = count * (16 + zeros) / found.weights.group / 8 if found.weights.group else {
            DType.NF4: count * 4 / 64, DType.NF4_DOUBLE: count / 64 + count * 4 / 64 / 256}.get(found.weights, 0)
        total += count * bits / 8 + scales + 4 * rows * found.act_order - 2 * count
    assert model.weights(Shard(precision=precision)) == pytest.approx(total, rel=1e-12)


def test_a_layer_that_is_left_as_it_is_stays_in_bf16(small):
    quantized = small(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128,
                                           "modules_to_not_convert": ["model.layers.1.self_attn"]})
    precision = EngineSettings(quantization="awq").precision
    whole = small().weights(Shard(precision=precision))
    attention = 128 * (256 + 128)  # of one layer
    more = quantized.weights(Shard(precision=precision)) - whole
    assert more == pytest.approx(attention * (2 - DType.INT4_G128_ZP.bytes))


@pytest.mark.parametrize("name, size", [
    # Bits of a weight with its share of the scales: 8 + 32 / 16384, 4 + 8 / 16, 4 + 8 / 32, 4 + 16 / 32.
    ("fp8_block", 8 + 32 / 16384), ("nvfp4", 4.5), ("mxfp4", 4.25), ("int4_block", 4.5)])
def test_scales_of_blocks_count(name, size):
    assert 8 * DType.named(name).bytes == size


@pytest.mark.parametrize("name, element", [("fp8_block", "fp8"), ("nvfp4", "fp4"), ("mxfp4", "fp4"), ("bf16", "bf16")])
def test_numbers_are_multiplied_without_their_scales(name, element):
    assert DType.named(name).element is DType.named(element)


def test_parts_that_are_kept_stay_in_bf16(small):
    """All of the small model but its attention: 2 layers of 128 x (256 + 128) weights."""
    whole, attention = small().parameters(), 2 * 128 * (256 + 128)
    plain = small().weights(Shard(precision=EngineSettings(quantization="fp8").precision))
    kept = EngineSettings(quantization="fp8", unquantized=("attention",)).precision
    assert small().weights(Shard(precision=kept)) - plain == attention
    assert small().weights(Shard()) == 2 * whole


@pytest.mark.parametrize("name, quantization", [
    ("gpt-oss-20b", "mxfp4"), ("minimax-m2.5", "fp8_block"), ("qwen3-235b-a22b", "none"), ("deepseek-v3", "fp8_block"),
    ("deepseek-r1", "fp8_block"), ("kimi-k2", "fp8_block"), ("kimi-k2.5", "int4_w4a16"), ("glm-5", "none"),
    ("qwen3.5-397b-a17b", "none")])
def test_models_of_the_catalogue_say_what_their_files_hold(model, name, quantization):
    assert model(name).decoder.quantization == quantization


def test_of_kimi_k2_5_experts_alone_are_quantized(model):
    """As of Kimi-K2-Thinking: 594 GB, 570.7 of them experts in INT4 with a BF16 scale for each 32."""
    kimi = model("kimi-k2.5")
    assert kimi.decoder.unquantized == ("attention", "mlp", "shared_experts")
    precision = EngineSettings(quantization="int4_w4a16", unquantized=kimi.decoder.unquantized).precision
    assert kimi.weights(Shard(precision=precision)) == pytest.approx(594e9, rel=2e-3)


def test_of_kimi_k3_routed_experts_alone_are_quantized():
    """Its files have 1.56 TB: the rest is in BF16, projections to and from the experts' latent vector, too."""
    kimi = model_of_table("k3", table_of("moonshotai/Kimi-K3"))
    said = EngineSettings(quantization=kimi.decoder.quantization, unquantized=kimi.decoder.unquantized)
    assert (said.quantization, said.unquantized) == ("mxfp4", ("attention", "mlp", "shared_experts"))
    assert kimi.weights(Shard(precision=said.precision)) == pytest.approx(1.56e12, rel=2e-3)


@pytest.mark.parametrize("left, kept", [(["mlp.shared_expert"], ("shared_experts",)), (["mlp.shared_expert_gate"], ())])
def test_shared_experts_have_a_name_in_the_singular_too(left, kept):
    assert read(quant_method="fp8", modules_to_not_convert=left).unquantized == kept
