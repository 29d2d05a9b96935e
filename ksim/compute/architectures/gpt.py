"""Models in GPT's line: GPT-2, GPT-NeoX, gpt-oss and StarCoder2."""

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["gpt2", "gpt_neox", "gpt_oss", "starcoder2"]


#: GPT-2's names, and those of later families.
NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
         "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}


def gpt2(config: Config) -> Decoder:
    """GPT-2: learned positions, LayerNorms, biases everywhere, and an MLP without a gate."""
    plain = config.under(NAMES)
    inner = plain.need("intermediate_size", 4 * plain.need("hidden_size"))
    plain = plain.instead({**plain.table, "intermediate_size": inner})
    mlp = blocks.plain_mlp(plain, plain.get("activation_function", "gelu_new"))
    layer = blocks.layer_norm_layer(blocks.attention(plain, qkv_bias=True, out_bias=True, before=()), mlp)
    length = plain.need("max_position_embeddings")
    decoder = blocks.decoder(plain, [layer] * plain.need("num_hidden_layers"), tied=True, C=length)
    return evolve(decoder, embedding=(*blocks.embedding(), *blocks.positions()),
                  head=blocks.head(last=blocks.layer_norm("final_norm")))


def gpt_neox(config: Config) -> Decoder:
    """GPT-NeoX and Pythia: attention beside an MLP without a gate, each after a LayerNorm of its own."""
    bias = config.get("attention_bias", True)
    attention = blocks.attention(config, qkv_bias=bias, out_bias=bias)
    mlp = blocks.plain_mlp(config, config.get("hidden_act", "gelu"))
    make = blocks.parallel_layer if config.get("use_parallel_residual", True) else blocks.layer_norm_layer
    decoder = blocks.decoder(config, [make(attention, mlp)] * config.need("num_hidden_layers"))
    return evolve(decoder, head=blocks.head(last=blocks.layer_norm("final_norm")))


def gpt_oss(config: Config) -> Decoder:
    """gpt-oss: biased projections, attention with sinks and a window in every other layer, and experts in all of
    them.
    """
    every_other = [layer % 2 == 0 for layer in range(config.need("num_hidden_layers"))]
    return blocks.mixture(config, blocks.layers(blocks.windows(config, every_other), lambda window: blocks.layer(
        blocks.attention(config, window, sinks=True), blocks.experts(config, bias=True))))


def starcoder2(config: Config) -> Decoder:
    """StarCoder 2: LayerNorms, biases everywhere, and an MLP without a gate."""
    blocks.only(config, mlp_type="default", norm_type="layer_norm", activation_function="gelu_pytorch_tanh")
    bias, act = config.get("use_bias", True), config.get("hidden_act", "gelu_pytorch_tanh")
    layers = blocks.layers(blocks.windows(config), lambda window: blocks.layer_norm_layer(
        blocks.attention(config, window, qkv_bias=bias, out_bias=bias), blocks.plain_mlp(config, act, bias=bias)))
    head = blocks.head(last=blocks.layer_norm("final_norm"))
    return evolve(blocks.decoder(config, layers, tied=True), head=head)
