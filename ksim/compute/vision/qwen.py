"""The encoders of Qwen2-VL to Qwen3-VL and of GLM-4.1V: rotary embeddings in two dimensions, squares of patches merged
into tokens.

Limits of pixels are those of the families' preprocessor_config.json.
"""

from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import communicate, pointwise
from ksim.compute.vision.processors import PixelProcessor
from ksim.compute.vision.towers import (
    TowerLayer,
    adapter,
    embed_patches,
    layer_norm,
    product,
    rms_norm,
    sizes,
    tower,
)
from ksim.foundation.errors import ConfigError

__all__ = ["glm_vision", "qwen2_5_vision", "qwen2_vision", "qwen3_vision"]


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
