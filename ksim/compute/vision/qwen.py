"""The encoders of Qwen2.5-VL and Qwen3-VL: rotary embeddings in two dimensions, squares of patches merged into tokens.

Limits of pixels are those of the families' preprocessor_config.json.
"""

from ksim.compute.model import Config, Decoder
from ksim.compute.vision.processors import PixelProcessor
from ksim.compute.vision.towers import TowerLayer, adapter, embed_patches, layer_norm, rms_norm, sizes, tower
from ksim.foundation.errors import ConfigError

__all__ = ["qwen2_5_vision", "qwen3_vision"]


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
