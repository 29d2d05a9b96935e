"""Model architectures: from a Hugging Face ``config.json`` to einsums.

To add one, add a function ``(config) -> Decoder``, called what `model_type` is
in the config: to the file of its line, or in a file of its own.  Sizes come from the config, kernels, weights,
cache and communication from the equations; `tests/laws` checks that they agree.
A family that is another under a name is a line of `ALIASES`.

Ask the config for keys by its methods: a key that nobody asked for is refused,
unless `ksim.compute.config` lists it.
"""

from ksim.foundation import catalog

__all__ = ["ALIASES", "families"]

#: Families that are others under a name, and what they differ in: numbers, or where a checkpoint keeps its weights.
ALIASES = {
    "deepseek_v2": "deepseek_v3",  # a router without correction; Lite projects queries in one step
    "deepseek_v32": "glm_moe_dsa",
    "glm4_moe_lite": "deepseek_v3",
    "glm4v_moe": "glm4v",
    "kimi_k2": "deepseek_v3",
    "minimax_m3_text": "minimax_m3",
    "minimax_m3_vl": "minimax_m3",
    "ministral": "llama",  # `layer_types` say which layers have a window
    "ministral3": "llama",
    "mistral": "llama",  # some with a window in every layer
    "olmo3": "olmo2",  # with a window in three of four layers
    "qwen2_5_omni_thinker": "qwen2_5_omni",
}


def families() -> list[str]:
    """The names that `model_type` may have, in the order of the alphabet."""
    return sorted({*catalog.names("compute.architectures"), *ALIASES})
