"""The vision towers of model families, and their parts: patch embeddings, layers, and adapters to the decoder.

Weights stay in BF16, whatever format the decoder has.  Additions and norms are kernels of their own, since vLLM runs
towers without torch.compile.

A patch attends to all others of its tile, or of its window in the tile.  The encoders of Qwen2-VL to Qwen3-VL and of
GLM-4.1V have rotary embeddings in two dimensions, and merge squares of patches into tokens; their limits of pixels are
those of the families' preprocessor_config.json.  InternViT (InternVL), Llama 4's and SigLIP (Gemma 3) take square
tiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

from attrs import frozen

from ksim.compute.blocks import Operations
from ksim.compute.graph import Op
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.compute.notation.pointwise import Elementwise
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.compute.vision import Processor
from ksim.compute.vision.processors import FixedProcessor, MosaicProcessor, PixelProcessor, TileProcessor
from ksim.flow.batch import Batch, Batches
from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Shard

__all__ = ["AttendPatches", "PatchAttentionLayer", "TowerLayer", "adapter", "embed_patches", "layer_norm", "product",
           "rms_norm", "sizes", "tower", "glm_vision", "qwen2_5_vision", "qwen2_vision", "qwen3_vision", "intern_vit",
           "llama4_vision", "siglip"]


@frozen
class AttendPatches:
    """Queries, keys and values ``tKh`` of each patch; nothing is masked, and nothing is cached.

    With a `window`, tiles are cut into squares of so many patches a side, which attend to themselves.
    """

    label: str = "attention"
    parallel: tuple[tuple[str, str], ...] = (("K", "tensor"),)
    window: int = 0

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        local = sizes.on(self.parallel, shard, self.label).of
        yield Op(self.label, PatchAttentionLayer(local["K"], local["K"], local["h"], self.window))


@frozen
class PatchAttentionLayer(AttentionLayer):
    """Attention's shape on one rank; `window` is the side of the squares that attend to themselves, 0 means tiles."""

    def counts(self, batch: Batch) -> tuple[int, ...]:
        sequences = [pair for image in batch.images for pair in image.sequences(self.window)]
        queries = sum(count * length for count, length in sequences)
        pairs = sum(count * length**2 for count, length in sequences)
        longest = max((length for _, length in sequences), default=0)
        return 0, 0, 0, sum(count for count, _ in sequences), queries, queries, pairs, pairs, longest, longest

    def columns(self, batches: Batches) -> Sequence[Any]:
        return self._one_by_one(batches)


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
    """The differences between layers of towers: norms, gated or plain MLPs, rotary embeddings, scales of residuals.

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


def tower(table: Mapping[str, int], embedding: Operations, layers: Sequence[Operations], head: Operations,
          over_patches: int, processor: Processor) -> Decoder:
    """A tower of these parts; the first operations of the *head*, so many, are *over_patches*, the others over tokens.
    """
    return Decoder(sizes=table, embedding=embedding, layers=tuple(layers), head=head, max_length=1,
                   sampled=over_patches, images=processor)


def qwen2_vision(config: Config, decoder: int) -> Decoder:
    """Full attention, LayerNorms, MLPs without a gate; `hidden_size` is the decoder's."""
    hidden, patch, merge = config.need("embed_dim", 1280), config.need("patch_size", 14), config.need(
        "spatial_merge_size", 2)
    own = config.instead({**config.table, "out_hidden_size": config.need("hidden_size", decoder), "hidden_size": hidden,
                          "intermediate_size": int(config.factor("mlp_ratio") * hidden)
                          if "mlp_ratio" in config.table else 4 * hidden})
    layer = TowerLayer(rotary=True).operations()
    return tower(_sizes(own, patch, merge, decoder), embed_patches(bias=False), [layer] * own.need("depth", 32),
                 (layer_norm("merger_norm"), *adapter()), 1,
                 PixelProcessor(56 * 56, 12_845_056, patch, merge, most_frames=14))


def glm_vision(config: Config, decoder: int) -> Decoder:
    """Positions by interpolation, RMSNorms and gated MLPs of the decoder's size; squares are merged by a convolution.

    The processor's limits are of two frames, which an image counts as; a video has 30,000 tokens at most
    (transformers, glm4v/video_processing_glm4v.py).
    """
    patch, merge = config.need("patch_size", 14), config.need("spatial_merge_size", 2)
    inner, side = config.need("intermediate_size", 13_696), config.need("image_size", 336)
    own = config.instead({**config.table, "intermediate_size": decoder})
    table = {**_sizes(own, patch, merge, decoder), "D": inner, "O": decoder, "B": (side // patch) ** 2}
    head = (
        rms_norm("final_norm"), product("sM,MO->sO", "downsample"),
        product("sO,ON->sN", "merger", "N", bias=False), communicate("all_gather", "sN", "merger_gather"),
        layer_norm("merger_norm", "sN"), pointwise("gelu", "sN->sN", "merger_act"),
        product("sN,NgD->sgD", "merger_gate_up", "D", bias=False),
        pointwise("silu_mul", "sgD->sD", "merger_mul", parallel="D"),
        product("sD,DO->sO", "merger_down", "D", bias=False),
    )
    embedding = (*embed_patches(), rms_norm("first_norm"), pointwise("add", "tm->tm", "positions", scale="Bm"))
    bias = own.get("attention_bias", False)
    layer = TowerLayer(gated=True, rms=True, rotary=True, qkv_bias=bias, biased=False).operations()
    return tower(table, embedding, [layer] * own.need("depth", 24), head, 1,
                 PixelProcessor(112 * 112 // 2, 28 * 28 * 12_288 // 2, patch, merge, video_pixels=28 * 28 * 30_000))


def qwen2_5_vision(config: Config, decoder: int) -> Decoder:
    """Windows in all layers but those of `fullatt_block_indexes`; gated MLPs and RMSNorm."""
    patch, merge = config.need("patch_size", 14), config.need("spatial_merge_size", 2)
    layers, whole = config.need("depth"), config.get("fullatt_block_indexes", [7, 15, 23, 31])
    window = config.need("window_size", 112) // (patch * merge) * merge
    layer = TowerLayer(gated=True, rms=True, rotary=True)
    head = (rms_norm("merger_norm"), *adapter())
    kinds = {size: layer.operations(size) for size in (0, window)}
    return tower(_sizes(config, patch, merge, decoder), embed_patches(bias=False),
                 [kinds[0 if number in whole else window] for number in range(layers)], head, 1,
                 PixelProcessor(56 * 56, 12_845_056, patch, merge, most_frames=14))


def qwen3_vision(config: Config, decoder: int) -> Decoder:
    """Full attention, learned positions, and further mergers for the vectors that early layers of the decoder add."""
    patch, merge = config.need("patch_size", 16), config.need("spatial_merge_size", 2)
    table = {**_sizes(config, patch, merge, decoder), "B": config.need("num_position_embeddings")}
    deep = config.get("deepstack_visual_indexes", [])
    layer = TowerLayer(rotary=True).operations()
    further = [operation for number in range(len(deep)) for operation in (
        layer_norm(f"deepstack_{number}_norm", "sM"), *adapter())]
    return tower(table, embed_patches(positions=True), [layer] * config.need("depth"),
                 (layer_norm("merger_norm"), *adapter(), *further), 1,
                 PixelProcessor(65_536, 16_777_216, patch, merge, video_pixels=25_165_824 // 2))


def _sizes(config: Config, patch: int, merge: int, decoder: int) -> dict[str, int]:
    if (out := config.need("out_hidden_size", decoder)) != decoder:
        raise ConfigError(f"{config.name}: out_hidden_size", f"{out} is not the hidden_size {decoder} of the decoder")
    return sizes(config, patch=patch, frames=config.need("temporal_patch_size", 2), merge=merge, decoder=decoder,
                 heads="num_heads")


def intern_vit(config: Config, decoder: int) -> Decoder:
    """*config* is the whole one: the tower's part is `vision_config`."""
    part = config.part("vision_config")
    side, patch, rows = _grid(part)
    merge = round(1 / (config.factor("downsample_ratio") if config.table.get("downsample_ratio") else 0.5))
    table = sizes(part, patch=patch, merge=merge, decoder=decoder, adapter=decoder, positions=rows**2 + 1)
    rms = part.get("norm_type", "layer_norm") == "rms_norm"
    layer = TowerLayer(rms=rms, scaled=True, wide_norm=part.get("qk_normalization", False),
                       qkv_bias=part.get("qkv_bias", True)).operations()
    head = (layer_norm("adapter_norm", "sM"), *adapter(parallel=False))
    processor = TileProcessor(
        config.need("min_dynamic_patch", 1), config.need("max_dynamic_patch", 12),
        config.get("dynamic_image_size", True), config.get("use_thumbnail", True), side, rows, (rows // merge) ** 2)
    return tower(table, embed_patches(positions=True, class_token=True), [layer] * part.need("num_hidden_layers"), head,
                 0, processor)


def llama4_vision(config: Config, decoder: int) -> Decoder:
    """*config* is the tower's part."""
    side, patch, rows = _grid(config)
    config.value("vision_output_dim")  # the adapter's, again
    merge = round(1 / (config.factor("pixel_shuffle_ratio") if config.table.get("pixel_shuffle_ratio") else 0.5))
    inner, outer = config.need("projector_input_dim"), config.need("projector_output_dim")
    table = {**sizes(config, patch=patch, merge=merge, decoder=decoder, adapter=inner, positions=rows**2 + 1),
             "O": outer}
    head = (
        layer_norm("final_norm"),
        product("sM,MD->sD", "adapter_up", "D", bias=False), pointwise("gelu", "sD->sD", "adapter_act", parallel="D"),
        product("sD,DO->sO", "adapter_down", "D", bias=False), pointwise("gelu", "sO->sO", "adapter_act_2"),
        product("sO,ON->sN", "projector", "N", bias=False), communicate("all_gather", "sN", "projector_gather"),
    )
    embedding = (*embed_patches(bias=False, positions=True, class_token=True), layer_norm("first_norm"))
    layer = TowerLayer(rotary=True).operations()
    return tower(table, embedding, [layer] * config.need("num_hidden_layers"), head, 1,
                 MosaicProcessor(side=side, rows=rows, embeds=(rows // merge) ** 2))


def siglip(config: Config, decoder: int, tokens: int) -> Decoder:
    """*config* is the tower's part; squares of patches are averaged into so many *tokens* an image."""
    _, patch, rows = _grid(config)
    merge = rows // isqrt(tokens)
    table = sizes(config, patch=patch, merge=merge, decoder=decoder, positions=rows**2)
    head = (layer_norm("final_norm"), pointwise("avg_pool", "sM->sm", "pool"), rms_norm("projector_norm", "sm"),
            product("sm,mN->sN", "projector", bias=False))
    layer = TowerLayer().operations()
    return tower(table, embed_patches(positions=True), [layer] * config.need("num_hidden_layers"), head, 1,
                 FixedProcessor(rows=rows, embeds=tokens))


def _grid(config: Config) -> tuple[int, int, int]:
    """The side of a tile and of a patch in pixels, and of the tile in patches."""
    side, patch = config.need("image_size"), config.need("patch_size")
    if side % patch:
        raise ConfigError(f"{config.name}: patch_size", f"{patch} does not divide image_size = {side}")
    return side, patch, side // patch
