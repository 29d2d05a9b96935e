"""Encoders of square tiles: InternViT (InternVL), Llama 4's and SigLIP (Gemma 3)."""

from math import isqrt

from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, pointwise
from ksim.compute.vision.processors import FixedProcessor, MosaicProcessor, TileProcessor
from ksim.compute.vision.towers import TowerLayer, adapter, embed_patches, layer_norm, product, rms_norm, sizes, tower
from ksim.foundation.errors import ConfigError

__all__ = ["intern_vit", "llama4_vision", "siglip"]


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
