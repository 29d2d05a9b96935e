"""Tencent's Hunyuan."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.foundation.errors import ConfigError

__all__ = ["hunyuan_v1_dense", "hunyuan_v1_moe"]


#: Keys about classifiers, images, layers that share keys and groups of experts, none of which these models have.
OTHERS = ("anyres_pooling_size", "anyres_vit_max_image_size", "anyres_vit_two_views", "cla_share_factor", "class_num",
          "dense_list", "enable_attention_fp32_softmax", "group_limited_greedy", "norm_type", "num_media_embeds",
          "pool_type", "skip_cls_token", "vit_add_patchemb_bias", "vit_input_resolution", "vit_mapping_type",
          "vit_norm_type", "vit_patch", "vit_path", "vit_remove_prenorm", "vit_token", "vit_type", "vit_used_rms_norm")


def hunyuan_v1_dense(config: Config) -> Decoder:
    """Hunyuan, dense: a Llama that norms the heads of queries and keys after it rotated them."""
    blocks.only(config, num_experts=1, num_shared_expert=1, moe_topk=1, moe_layer_num_skipped=0,
                use_mixed_mlp_moe=False)
    layer = blocks.layer(attention(config), blocks.gated_mlp(config))
    return blocks.decoder(config, [layer] * config.need("num_hidden_layers"))


def attention(config: Config) -> blocks.Operations:
    """Grouped-query attention with norms after rotary embeddings."""
    for key in OTHERS:
        config.value(key)
    if config.value("attention_head_dim") is not None:
        blocks.only(config, attention_head_dim=blocks.sizes(config)["h"])
    norms = blocks.HEAD_NORM if config.get("use_qk_norm", True) else ()
    return blocks.attention(config, before=(*blocks.ROPE, *norms))


def hunyuan_v1_moe(config: Config) -> Decoder:
    """Hunyuan's mixtures of experts (A13B): Hunyuan's attention, and experts beside shared ones in all layers.

    Lists in the config have a number for each layer; one that differs between layers is refused.
    """
    shared = _same(config, "num_shared_expert") * _same(config, "moe_intermediate_size")
    size, chosen = _same(config, "moe_intermediate_size"), _same(config, "moe_topk")
    plain = config.instead({**config.table, "moe_intermediate_size": size, "num_experts_per_tok": chosen,
                            "moe_topk": None, "num_shared_expert": None})
    blocks.only(plain, use_mixed_mlp_moe=True, moe_layer_num_skipped=0, mlp_bias=False)
    layer = blocks.layer(attention(plain), blocks.experts(plain, shared=blocks.shared_experts(plain), exact=True))
    return blocks.mixture(plain, [layer] * plain.need("num_hidden_layers"), S=shared)


def _same(config: Config, key: str) -> int:
    """The number under *key* that all layers have; raises ConfigError where they differ."""
    value = config.value(key)
    numbers = value if isinstance(value, list) else [value]
    if len({*map(str, numbers)}) != 1 or type(numbers[0]) is not int:
        raise ConfigError(f"{config.name}: {key}", f"expected one whole number for all layers, not {value!r}")
    return int(numbers[0])
