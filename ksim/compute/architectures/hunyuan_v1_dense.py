"""Hunyuan, dense: a Llama that norms the heads of queries and keys after it rotated them."""

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder

__all__ = ["hunyuan_v1_dense"]

#: Keys about classifiers, images, layers that share keys and groups of experts, none of which these models have.
OTHERS = ("anyres_pooling_size", "anyres_vit_max_image_size", "anyres_vit_two_views", "cla_share_factor", "class_num",
          "dense_list", "enable_attention_fp32_softmax", "group_limited_greedy", "norm_type", "num_media_embeds",
          "pool_type", "skip_cls_token", "vit_add_patchemb_bias", "vit_input_resolution", "vit_mapping_type",
          "vit_norm_type", "vit_patch", "vit_path", "vit_remove_prenorm", "vit_token", "vit_type", "vit_used_rms_norm")


def hunyuan_v1_dense(config: Config) -> Decoder:
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
