"""Models of many families, so small that whole runs of them are quick."""

import copy
from typing import Any

from ksim.foundation import catalog
from tests.laws.tiny import TINY

#: What all of them have; each model of the catalogue below has other sizes beside these.
_SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000, "max_position_embeddings": 4096}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "depth": 2, "deepstack_visual_indexes": [0, 1],
          "out_hidden_size": 128}
_SIGLIP = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}


def _small(name: str, vision: dict[str, Any] | None = None, **sizes: Any) -> dict[str, Any]:
    """The config.json of the catalogue's *name* with other *sizes*, and with those of its tower as *vision* says."""
    table = copy.deepcopy(catalog.load("models", name))
    text = table.get("text_config", table)
    text.update(_SIZES | sizes)
    if vision:
        table["vision_config"].update(vision)
    return table


SMALL: dict[str, dict[str, Any]] = {
    "dense": TINY,
    "experts": _small("glm-4.5-air", n_routed_experts=8, **_EXPERTS),
    "windows": _small("gpt-oss-20b", num_local_experts=8, num_experts_per_tok=2, experts_per_token=2, sliding_window=32,
                      layer_types=["sliding_attention", "full_attention"] * 2),
    "delta": _small("qwen3-next-80b-a3b", num_experts=8, **_EXPERTS, shared_expert_intermediate_size=64,
                    linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=4,
                    linear_num_value_heads=4),
    "mamba": _small("falcon-h1-7b", mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16),
    "seeing": _small("qwen3-vl-8b", _TOWER),
    "seeing experts": _small("qwen3-vl-30b-a3b", _TOWER, num_experts=8, **_EXPERTS),
    "seeing windows": _small("gemma-3-4b", _SIGLIP, sliding_window=32, num_hidden_layers=6),
}
