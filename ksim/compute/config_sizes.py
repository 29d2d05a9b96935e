"""What configs of many families say under the same keys: sizes, lengths, windows, and which layer is of which kind."""

from collections.abc import Sequence
from typing import Any

from ksim.compute.config import Config
from ksim.foundation.errors import ConfigError

__all__ = ["FULL", "SLIDING", "late_windows", "layer_types", "max_length", "only", "rotary", "sizes", "sparse", "text",
           "windows"]

#: Scaled rotary embeddings whose `max_position_embeddings` is the stretched length already, as in vLLM.
STRETCHED = {"default", "llama3", "longrope", "mrope", "proportional", "su"}
#: Scaled rotary embeddings that stretch it by their `factor`.
STRETCHING = {"linear", "dynamic", "yarn"}
#: Keys of the language model that a multimodal config may have beside its `text_config`.
OUTSIDE = {"quantization_config", "tie_word_embeddings"}
#: Keys beside the language model's, of the parts that see and hear, which are left out.
OTHER_PARTS = (
    "vision_config", "audio_config", "projector_config", "media_placeholder_token_id", "vision_tower", "ignore_index",
    "vision_feature_layer", "vision_feature_select_strategy", "multimodal_projector_bias", "projector_hidden_act",
    "use_unified_vision_chunk", "video_placeholder", "spatial_merge_size", "mm_tokens_per_image")
#: What `layer_types` calls attention with a window and without.
SLIDING, FULL = "sliding_attention", "full_attention"


def sizes(config: Config) -> dict[str, int]:
    """The sizes of a transformer with grouped-query attention, by their usual names in config.json."""
    heads = config.need("num_attention_heads")
    kv_heads = config.need("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"{config.name}: num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")
    group, hidden = heads // kv_heads, config.need("hidden_size")
    if not config.value("head_dim") and hidden % heads:
        raise ConfigError(f"{config.name}: num_attention_heads", f"{heads} does not divide hidden_size = {hidden}, and"
                                                                 " there is no head_dim")
    return {
        "m": hidden, "V": config.need("vocab_size"), "g": 2,
        "F": config.need("intermediate_size", config.get("moe_intermediate_size", 0)),
        "K": kv_heads, "r": group, "i": group + 2, "l": 2 * group + 2, "h": config.need("head_dim", hidden // heads),
    }


def text(config: Config) -> Config:
    """The part of a multimodal config that describes the language model, or else *config* itself."""
    for key in OTHER_PARTS:
        config.value(key)
    return config.joined("text_config", OUTSIDE)


def only(config: Config, **values: Any) -> None:
    """Raise ConfigError where *config* has another value under a key than the one that is modelled."""
    for key, modelled in values.items():
        if (value := config.get(key, modelled)) != modelled:
            raise ConfigError(f"{config.name}: {key}", f"{value!r} is not modelled, only {modelled!r}")


def max_length(config: Config) -> int:
    """The longest sequence in tokens; a scaled rotary embedding stretches it as in vLLM."""
    length = config.need("max_position_embeddings")
    parts = [config.part(key) for key in ("rope_scaling", "rope_parameters")]
    scaling = parts[config.value("rope_scaling") is None]
    for kind, other in ((FULL, SLIDING), ("compress", "main")):  # one for each type of layer; the first stretches
        if isinstance(scaling.table.get(kind), dict):
            scaling.part(other)
            scaling = scaling.part(kind)
            break
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in STRETCHED | STRETCHING:
        raise ConfigError(f"{scaling.name}: rope_type", f"{kind!r} is none of"
                                                        f" {', '.join(sorted(STRETCHED | STRETCHING))}")
    if kind in STRETCHED:
        return length
    if kind == "yarn":
        length = scaling.need("original_max_position_embeddings", length)
    return max(1, int(length * scaling.factor("factor")))


def windows(config: Config, sliding: Sequence[bool] = ()) -> list[int]:
    """The attention window of each layer in tokens, 0 for none.

    `layer_types` says which layers have the config's `sliding_window`, or else *sliding*; all of them if that is empty.
    """
    window = config.need("sliding_window") if config.value("sliding_window") else 0
    slides = sliding or [True] * config.need("num_hidden_layers")
    kinds = layer_types(config, [SLIDING if slide else FULL for slide in slides], (SLIDING, FULL))
    return [window if kind == SLIDING else 0 for kind in kinds]


def layer_types(config: Config, default: list[str], known: Sequence[str], key: str = "layer_types") -> list[str]:
    """The type of each layer under *key*, or *default*; raises ConfigError for a type that is not *known*."""
    kinds, layers = config.get(key, default), config.need("num_hidden_layers")
    if len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ConfigError(f"{config.name}: {key}", f"expected {layers} times {' or '.join(known)}")
    return kinds


def rotary(config: Config) -> list[bool]:
    """Which layers have rotary embeddings: by `no_rope_layers`, where 1 means yes, or all but every fourth."""
    layers, every = config.need("num_hidden_layers"), config.need("no_rope_layer_interval", 4)
    says = config.get("no_rope_layers", []) or [int((layer + 1) % every != 0) for layer in range(layers)]
    if len(says) < layers:
        raise ConfigError(f"{config.name}: no_rope_layers", f"expected {layers} times 0 or 1")
    return [bool(each) for each in says[:layers]]


def late_windows(config: Config) -> list[bool]:
    """Which layers have a window by Qwen's settings: the last ones, and only with `use_sliding_window`."""
    some, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
    return [some and layer >= first for layer in range(config.need("num_hidden_layers"))]


def sparse(config: Config) -> list[bool]:
    """Which layers have experts, by Qwen's settings: every few of them but for some that are named."""
    dense, every = config.get("mlp_only_layers", []), config.need("decoder_sparse_step", 1)
    return [layer not in dense and (layer + 1) % every == 0 for layer in range(config.need("num_hidden_layers"))]
