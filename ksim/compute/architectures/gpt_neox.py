"""GPT-NeoX and Pythia: attention beside an MLP without a gate, each after a LayerNorm of its own."""

from attrs import evolve

from ksim.compute import blocks, layer_norms
from ksim.compute.model import Config, Decoder

__all__ = ["gpt_neox"]


def gpt_neox(config: Config) -> Decoder:
    bias = config.get("attention_bias", True)
    attention = blocks.attention(config, qkv_bias=bias, out_bias=bias)
    mlp = layer_norms.plain_mlp(config, config.get("hidden_act", "gelu"))
    make = layer_norms.parallel_layer if config.get("use_parallel_residual", True) else layer_norms.layer
    decoder = blocks.decoder(config, [make(attention, mlp)] * config.need("num_hidden_layers"))
    return evolve(decoder, head=blocks.head(last=layer_norms.layer_norm("final_norm")))
