"""Parts of vision towers: patch embeddings, layers, and what makes tokens of the decoder of the last patches.

Weights stay in BF16, whatever format the decoder has.  Additions and norms are kernels of their own, since vLLM runs
towers without torch.compile.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ksim.compute.blocks import Operations
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.compute.notation.communicate import Communicate
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import Product
from ksim.compute.vision import Processor
from ksim.compute.vision.attention import AttendPatches
from ksim.foundation.errors import ConfigError

__all__ = ["TowerLayer", "adapter", "embed_patches", "layer_norm", "product", "rms_norm", "sizes", "tower",
           "whole_attention"]

#: Values of a pixel: red, green and blue.
CHANNELS = 3
ADD = pointwise("add", "tm,tm->tm", "add")


def product(equation: str, label: str, parallel: str = "", bias: bool = True) -> Product:
    """A product with weights of the tower."""
    return op(equation, label, parallel=parallel, bias=bias, quantized=False)


def layer_norm(label: str, tensor: str = "tm") -> Elementwise:
    return pointwise("layer_norm", f"{tensor}->{tensor}", label, scale=f"{tensor[-1]},{tensor[-1]}")


def rms_norm(label: str, tensor: str = "tm") -> Elementwise:
    return pointwise("rms_norm", f"{tensor}->{tensor}", label, scale=tensor[-1])


def sizes(config: Config, *, patch: int, frames: int = 1, merge: int, decoder: int, adapter: int = 0,
          positions: int = 0, heads: str = "num_attention_heads") -> dict[str, int]:
    """The sizes of a tower.

    A *patch* is so many pixels a side, in so many *frames*; a square of *merge* patches a side becomes a token of
    *decoder* numbers.  The *adapter*'s inner size is by default that of the merged patches.
    """
    hidden, count = config.need("hidden_size"), config.need(heads)
    if hidden % count:
        raise ConfigError(f"{config.name}: {heads}", f"{count} does not divide hidden_size = {hidden}")
    merged = hidden * merge**2
    return {"m": hidden, "K": count, "r": 1, "i": 3, "l": 4, "h": hidden // count, "g": 2, "V": 0,
            "F": config.need("intermediate_size"), "P": CHANNELS * frames * patch**2, "M": merged,
            "D": adapter or merged, "N": decoder, "B": positions or 1}


def embed_patches(*, bias: bool = True, positions: bool = False, class_token: bool = False) -> Operations:
    """Pixels to vectors; learned *positions* are added, the first of them to a *class_token*, which each tile has."""
    scale = "Bm,m" if class_token else "Bm"
    return (product("tP,Pm->tm", "patch_embedding", bias=bias),
            *((pointwise("add", "tm->tm", "positions", scale=scale),) if positions else ()))


@frozen
class TowerLayer:
    """What layers of towers differ in: norms, gated or plain MLPs, rotary embeddings, the scales of what is added.

    Projections of queries, keys and values have biases of their own; *biased* are all others.
    """

    gated: bool = False
    rms: bool = False
    rotary: bool = False
    scaled: bool = False
    wide_norm: bool = False
    qkv_bias: bool = True
    biased: bool = True

    def operations(self, window: int = 0) -> Operations:
        norm = rms_norm if self.rms else layer_norm
        scale = (pointwise("scale", "tm->tm", "layer_scale", scale="m"),) if self.scaled else ()
        return (norm("attention_norm"), *self._attention(window), *scale, ADD,
                norm("mlp_norm"), *self._mlp(), *scale, ADD)

    def _attention(self, window: int) -> Operations:
        return (
            product("tm,miKh->tiKh", "qkv", "K", bias=self.qkv_bias),
            *(WIDE_NORM if self.wide_norm else ()),
            *((pointwise("rope", "tKh,tKh->tKh,tKh", "rope", parallel="K"),) if self.rotary else ()),
            AttendPatches(window=window),
            product("tKh,Khm->tm", "attention_output", "K", self.biased),
        )

    def _mlp(self) -> Operations:
        if self.gated:
            up = (product("tm,mgF->tgF", "gate_up", "F", self.biased),
                  pointwise("silu_mul", "tgF->tF", "act", parallel="F"))
        else:
            up = (product("tm,mF->tF", "up", "F", self.biased), pointwise("gelu", "tF->tF", "act", parallel="F"))
        return *up, product("tF,Fm->tm", "down", "F", self.biased)


#: RMSNorm over all heads of the queries, and of the keys, for which ranks gather them.
WIDE_NORM = (communicate("all_gather", "tm", "query_gather"), communicate("all_gather", "tm", "key_gather"),
             pointwise("rms_norm", "tm,tm->tm,tm", "qk_norm", scale="m,m"))


def adapter(*, bias: bool = True, parallel: bool = True) -> Operations:
    """Two products with a GELU between, from merged patches to tokens; ranks may have a part of it."""
    split = "D" if parallel else ""
    return (product("sM,MD->sD", "adapter_up", split, bias),
            pointwise("gelu", "sD->sD", "adapter_act", parallel=split),
            product("sD,DN->sN", "adapter_down", split, bias))


def whole_attention(encoder: Decoder) -> Decoder:
    """*encoder* with all heads on each rank, so that ranks exchange nothing in attention and share the MLPs alone."""
    whole = {layer: tuple(_whole(operation) for operation in layer if not isinstance(operation, Communicate))
             for layer in map(tuple, encoder.layers)}
    return evolve(encoder, layers=tuple(whole[tuple(layer)] for layer in encoder.layers))


def _whole(operation: Any) -> Any:
    return evolve(operation, parallel=()) if "K" in dict(getattr(operation, "parallel", ())) else operation


def tower(table: Mapping[str, int], embedding: Operations, layers: Sequence[Operations], head: Operations,
          over_patches: int, processor: Processor) -> Decoder:
    """A tower of these parts; the first operations of the *head*, so many, are *over_patches*, the others over tokens.
    """
    return Decoder(sizes=table, embedding=embedding, layers=tuple(layers), head=head, max_length=1,
                   sampled=over_patches, images=processor)
