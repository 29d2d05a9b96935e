"""StarCoder 2: LayerNorms, biases everywhere, and an MLP without a gate."""

from attrs import evolve

from ksim.compute import blocks, layer_norms
from ksim.compute.model import Config, Decoder

__all__ = ["starcoder2"]


def starcoder2(config: Config) -> Decoder:
    blocks.only(config, mlp_type="default", norm_type="layer_norm", activation_function="gelu_pytorch_tanh")
    bias, act = config.get("use_bias", True), config.get("hidden_act", "gelu_pytorch_tanh")
    layers = blocks.layers(blocks.windows(config), lambda window: layer_norms.layer(
        blocks.attention(config, window, qkv_bias=bias, out_bias=bias), layer_norms.plain_mlp(config, act, bias=bias)))
    head = blocks.head(last=layer_norms.layer_norm("final_norm"))
    return evolve(blocks.decoder(config, layers, tied=True), head=head)
