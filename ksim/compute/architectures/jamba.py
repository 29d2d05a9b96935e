"""Jamba: Mamba with inner norms in seven of eight layers, attention without rotary embeddings in one, and experts in
every other layer."""

from collections.abc import Callable
from math import ceil

from ksim.compute import blocks, mamba
from ksim.compute.model import Config, Decoder

__all__ = ["jamba"]


def jamba(config: Config) -> Decoder:
    mixers = {True: blocks.attention(config, before=()),
              False: mamba.mamba(bias=config.get("mamba_proj_bias", False), norms=True,
                                 conv_bias=config.get("mamba_conv_bias", True))}
    mlps = {True: blocks.experts(config), False: blocks.gated_mlp(config)}
    layers = range(config.need("num_hidden_layers"))
    attends = _every(config, "attn_layer", 8, 4)
    sparse = _every(config, "expert_layer", 2, 1) if config.need("num_experts", 16) > 1 else lambda layer: False
    return blocks.mixture(config, blocks.layers(
        ((attends(layer), sparse(layer)) for layer in layers),
        lambda kind: blocks.layer(mixers[kind[0]], mlps[kind[1]])), tied=False, **_sizes(config))


def _every(config: Config, name: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of those that come once in every few, from which offset on."""
    turn, first = config.need(f"{name}_period", period), config.get(f"{name}_offset", offset)
    return lambda layer: layer % turn == first


def _sizes(config: Config) -> dict[str, int]:
    hidden, states = config.need("hidden_size"), config.need("mamba_d_state", 16)
    auto = config.value("mamba_dt_rank") in (None, "auto")
    rank = ceil(hidden / 16) if auto else config.need("mamba_dt_rank")
    return {"I": config.need("mamba_expand", 2) * hidden, "N": states, "R": rank, "Q": rank + 2 * states,
            "W": config.need("mamba_d_conv", 4)}
