"""Settings of a config.json that change the answer are honoured, or refused by name."""

import pytest

from ksim.foundation.errors import ConfigError
from ksim.specs.deployment import Shard

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
    assert ["router" in [op.label for op in layer] for layer in model.decoder.layers] == sparse
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
    ({"hidden_act": "relu2"}, "small.json: hidden_act: 'relu2' is none of silu, gelu, gelu_pytorch_tanh"),
    ({"sliding_window": -4}, "small.json: sliding_window: expected a positive whole number, not -4"),
    ({"layer_types": ["full_attention"]},
     "small.json: layer_types: expected 2 times sliding_attention or full_attention"),
    ({"layer_types": ["full_attention", "linear_attention"]},
     "small.json: layer_types: expected 2 times sliding_attention or full_attention"),
    ({"quantization_config": {"quant_method": "awq"}}, "small.json: quantization_config: 'awq' in this form is not"
                                                       " read; leave it out and set the engine's quantization instead"),
])
def test_what_is_refused(small, settings, problem):
    with pytest.raises(ConfigError) as error:
        small(**settings)
    assert str(error.value) == problem
