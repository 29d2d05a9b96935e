"""LFM2's mixtures of experts: LFM2's convolutions and attention, and experts after a few dense layers."""

from ksim.compute import blocks
from ksim.compute.architectures.lfm2 import conv_sizes, kinds, mixers_of, named
from ksim.compute.model import Config, Decoder

__all__ = ["lfm2_moe"]


def lfm2_moe(config: Config) -> Decoder:
    plain = named(config)
    mixers, dense = mixers_of(plain), plain.count("num_dense_layers") if "num_dense_layers" in plain.table else 2
    mlps = {True: blocks.gated_mlp(plain),
            False: blocks.experts(plain, corrected=plain.get("use_expert_bias", True))}
    layers = blocks.layers(((kind, layer < dense) for layer, kind in enumerate(kinds(plain))),
                           lambda kind: blocks.layer(mixers[kind[0]], mlps[kind[1]]))
    return blocks.mixture(plain, layers, tied=True, **conv_sizes(plain))
