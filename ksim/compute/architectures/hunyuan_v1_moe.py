"""Hunyuan's mixtures of experts (A13B): Hunyuan's attention, and experts beside shared ones in all layers.

Lists in the config have a number for each layer; one that differs between layers is refused.
"""

from ksim.compute import blocks
from ksim.compute.architectures.hunyuan_v1_dense import attention
from ksim.compute.model import Config, Decoder
from ksim.foundation.errors import ConfigError

__all__ = ["hunyuan_v1_moe"]


def hunyuan_v1_moe(config: Config) -> Decoder:
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
