"""Settings of a config.json that change the answer are honoured, or refused by name."""

from collections.abc import Sequence
from typing import Any

import pytest

from ksim.compute.architectures.deepseek import kimi_k25
from ksim.compute.kernels.basic import Gemm
from ksim.compute.model import Config
from ksim.compute.sizes import Sizes
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Shard

from .conftest import SMALL, build

MIXTURE = {**SMALL, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def windows(model):
    return [op.window for layer in model.decoder.layers for op in layer if hasattr(op, "window")]


def test_biases(small):
    """16 heads of 16 and 128 in each of 2 layers; gate, up and 128."""
    plain = small().parameters()
    assert small(attention_bias=True).parameters() - plain == 2 * (256 + 128)
    assert small(mlp_bias=True).parameters() - plain == 2 * (512 + 128)


def test_tied_embeddings(small):
    assert small().parameters() - small(tie_word_embeddings=True).parameters() == 128 * 1000


def test_gemma_is_tied_unless_told_otherwise(small):
    tied = small(model_type="gemma2")
    assert tied.decoder.tied
    assert small(model_type="gemma2", tie_word_embeddings=False).parameters() - tied.parameters() == 128 * 1000


def test_heads_default_to_full_attention_and_even_size(small):
    sizes = small(num_key_value_heads=None).decoder.sizes
    assert (sizes["K"], sizes["r"], sizes["h"]) == (8, 1, 16)
    assert small(head_dim=32).decoder.sizes["h"] == 32


@pytest.mark.parametrize("settings, expected", [
    ({}, [0, 0]),
    ({"sliding_window": None}, [0, 0]),
    ({"sliding_window": 512}, [512, 512]),
    ({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}, [0, 512]),
    ({"sliding_window": 512, "model_type": "gemma2"}, [512, 0]),
    ({"sliding_window": 512, "model_type": "qwen3"}, [0, 0]),
    ({"sliding_window": 512, "model_type": "qwen3", "use_sliding_window": True}, [0, 0]),
    ({"sliding_window": 512, "model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 1}, [0, 512]),
])
def test_windows(small, settings, expected):
    assert windows(small(**settings)) == expected


@pytest.mark.parametrize("scaling, expected", [
    (None, 4096),
    ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
    ({"type": "linear", "factor": 2.0}, 8192),
])
def test_max_length_follows_the_rotary_embedding(small, scaling, expected):
    assert small(rope_scaling=scaling).max_length == expected


@pytest.mark.parametrize("settings, family", [
    ({}, "silu_mul"), ({"hidden_act": "gelu"}, "gelu_mul"),
    ({"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}, "gelu_mul"),
])
def test_activations(small, settings, family):
    assert family in {op.family for op in small(**settings).decoder.layers[0] if hasattr(op, "family")}


def test_queries_and_keys_are_normed_by_one_kernel(small):
    """Two norms of 16 numbers in each of 2 layers."""
    assert small(model_type="qwen3").parameters() - small().parameters() == 2 * 2 * 16


def test_gemma_has_four_norms_a_layer_and_scales_its_embedding(small):
    labels = [op.label for block in small(model_type="gemma2").graph(10, 1, Shard()).blocks for op in block.ops]
    assert labels[1] == "embedding_scale"
    assert [label for label in labels if "_norm" in label] == [
        "attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm", "final_norm"]


@pytest.mark.parametrize("settings, capped", [({}, True), ({"final_logit_softcapping": None}, False)])
def test_logits_are_capped_unless_the_cap_is_null(small, settings, capped):
    graph = small(model_type="gemma2", **settings).graph(10, 1, Shard())
    assert ("logits_softcap" in [op.label for op in graph.blocks[-1].ops]) == capped


@pytest.mark.parametrize("settings, sparse", [
    ({}, [True, True, True]), ({"mlp_only_layers": [0]}, [False, True, True]),
    ({"decoder_sparse_step": 2}, [False, True, False]),
])
def test_some_layers_of_a_mixture_are_dense(settings, sparse):
    """A dense layer has the config's intermediate size, an expert its own."""
    model = build("small.json", {**MIXTURE, "num_hidden_layers": 3, **settings})
    layers: Sequence[Any] = model.decoder.layers
    assert ["router" in [op.label for op in layer] for layer in layers] == sparse
    dense, mixture, rest = 3 * 128 * 256, 4 * 3 * 128 * 64 + 128 * 4, 2 * 128 + 32 + 384 * 128
    assert model.parameters() == sum(rest + (mixture if each else dense) for each in sparse) + 2 * 128_000 + 128


def test_active_parameters_count_the_experts_that_see_a_token():
    model = build("small.json", MIXTURE)
    assert model.parameters() - model.active_parameters() == 2 * 2 * 3 * 128 * 64


@pytest.mark.parametrize("settings, problem", [
    ({"hidden_size": None}, "small.json: hidden_size: is missing"),
    ({"hidden_size": -1}, "small.json: hidden_size: expected a positive whole number, not -1"),
    ({"num_hidden_layers": 2.5}, "small.json: num_hidden_layers: expected a whole number, not 2.5"),
    ({"vocab_size": True}, "small.json: vocab_size: expected a whole number, not True"),
    ({"num_key_value_heads": 3}, "small.json: num_key_value_heads: 3 does not divide 8 attention heads"),
    ({"num_key_value_heads": 0}, "small.json: num_key_value_heads: expected a positive whole number, not 0"),
    ({"attention_bias": "no"}, "small.json: attention_bias: expected true or false, not 'no'"),
    ({"hidden_act": "relu2"},
     "small.json: hidden_act: 'relu2' is none of silu, gelu, gelu_pytorch_tanh, situ, swigluoai"),
    ({"sliding_window": -4}, "small.json: sliding_window: expected a positive whole number, not -4"),
    ({"layer_types": ["full_attention"]},
     "small.json: layer_types: expected 2 times sliding_attention or full_attention"),
    ({"layer_types": ["full_attention", "linear_attention"]},
     "small.json: layer_types: expected 2 times sliding_attention or full_attention"),
    ({"quantization_config": {"quant_method": "hqq"}},
     "small.json: quantization_config: quant_method 'hqq' is not read; leave it out and set the engine's quantization"
     " instead (fp8, fbgemm_fp8, mxfp4, modelopt, modelopt_fp4, compressed-tensors, awq, gptq, auto-round,"
     " intel/auto-round, bitsandbytes are read)"),
    ({"hidden_size": 10**19}, "small.json: hidden_size: 10000000000000000000 is more than any model has; the most is"
                              " 2147483648"),
    ({"num_hidden_layers": 10**8}, "small.json: num_hidden_layers: 100000000 is more than any model has; the most is"
                                   " 2000"),
    ({"hidden_size": 130}, "small.json: num_attention_heads: 8 does not divide hidden_size = 130, and there is no"
                           " head_dim"),
    ({"rope_scaling": {"type": "yarn", "factor": "4"}},
     "small.json: rope_scaling: factor: expected a positive number, not '4'"),
    ({"rope_scaling": {"type": 3}}, "small.json: rope_scaling: type: expected a text, not 3"),
    ({"quantization_config": {"quant_method": "fp8", "ignored_layers": [7]}},
     "small.json: quantization_config: ignored_layers: expected texts, not 7"),
])
def test_what_is_refused(small, settings, problem):
    with pytest.raises(ConfigError) as error:
        small(**settings)
    assert str(error.value) == problem


def test_a_multimodal_config_is_read_by_its_language_part(model):
    """Kimi K2.5's has in `text_config` what Kimi K2's has at the top; its quantization may stand in there or beside."""
    whole = catalog.load("models", "kimi-k2.5")
    assert kimi_k25(Config("mine", whole)) == kimi_k25(Config("mine", whole["text_config"]))
    assert model("kimi-k2.5").parameters() == model("kimi-k2").parameters()
    inner = dict(whole["text_config"])
    beside = {**whole, "quantization_config": inner.pop("quantization_config"), "text_config": inner}
    assert kimi_k25(Config("mine", beside)) == kimi_k25(Config("mine", whole))


def test_where_ranks_divide_their_tokens_each_has_shared_experts_whole(model):
    """Of two tensor-parallel ranks with whole experts and another data rank, as in vLLM; else each has a slice."""
    v3, scattered = model("deepseek-v3"), Shard(tensor=2, data=2, expert_parallel=True)
    for shard, rows, size in (
            (scattered, 50, 2048), (Shard(tensor=2, data=2), 100, 1024), (Shard(tensor=2), 100, 1024)):
        kernels = {op.label: op.kernel for op in v3.graph(100, 1, shard).blocks[2].ops}
        assert kernels["shared_gate_up"] == Gemm(rows, 2 * size, 7168)
        assert kernels["shared_down"] == Gemm(rows, 7168, size)
    shared = [op for op in v3.decoder.layers[-1] if op.label in ("shared_gate_up", "shared_down")]
    assert sum(op.weights(Sizes(v3.decoder.sizes), scattered) for op in shared) == 3 * 7168 * 2048 * 2


def test_shared_experts_add_partial_sums_that_others_reduce(model):
    """An MLP on every rank whose own all-reduce is left out; Qwen's is gated by a product with one column."""
    qwen = [op for op in model("qwen3.5-397b-a17b").decoder.layers[0] if op.label.startswith("shared")]
    sizes = Sizes({**model("qwen3.5-397b-a17b").decoder.sizes, "t": 8, "s": 0, "x": 80})
    launched = [launch for op in qwen for launch in op.lower(sizes, Shard(tensor=8))]
    assert [launch.label for launch in launched] == [
        "shared_gate_up", "shared_act", "shared_down", "shared_gate", "shared_scale", "shared_add"]
    assert launched[3].kernel == Gemm(8, 1, 4096) and launched[2].kernel == Gemm(8, 4096, 128)


@pytest.mark.parametrize("name, key, value", [
    ("deepseek-v3", "moe_layer_freq", 2), ("deepseek-v3", "attention_bias", True), ("glm-5", "moe_layer_freq", 2),
    ("qwen3-next-80b-a3b", "mlp_only_layers", [0]), ("qwen3-next-80b-a3b", "decoder_sparse_step", 2)])
def test_what_is_not_modelled_is_refused_by_name(name, key, value):
    table = {**catalog.load("models", name), key: value}
    with pytest.raises(ConfigError, match=f"{name}: {key}: .* is not modelled"):
        build(name, table)


#: What nobody means under any key of a config.json.
NONSENSE = (None, "x", -1, 0, 1e19, 10**19, True, [], [None], {"type": 7}, {"a": 1})


def shortened(table):
    """The config *table* with two layers."""
    if "text_config" in table:
        return {**table, "text_config": shortened(table["text_config"])}
    return {**table, "num_hidden_layers": 2, **({"layer_types": table["layer_types"][:2]}
                                                if "layer_types" in table else {})}


@pytest.mark.parametrize("name", ["gemma-2-2b", "gpt-oss-20b", "qwen3-next-80b-a3b", "glm-5", "kimi-k2.5"])
def test_nonsense_under_any_key_is_a_model_or_an_error_by_key(name):
    table = shortened(catalog.load("models", name))
    for part in (table, *(inner for inner in table.values() if isinstance(inner, dict))):
        for key, value in [item for item in part.items() if item[0] != "model_type"]:
            for nonsense in NONSENSE:
                part[key] = nonsense
                try:
                    assert build(name, table).parameters() > 0
                except ConfigError as error:
                    assert str(error).startswith(f"{name}: ")
            part[key] = value
