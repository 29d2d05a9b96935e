"""Which family of models a config.json is of, and what to do where ksim does not know it."""

from difflib import get_close_matches

from ksim.compute.model import Config
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["alike", "family"]

#: Keys of a config that tell what its layers are like, most particular first, and the family to try.
SIGNS = (
    (("linear_num_value_heads",), "qwen3_next"), (("index_topk", "kv_lora_rank"), "glm_moe_dsa"),
    (("kv_lora_rank", "q_lora_rank"), "deepseek_v3"), (("num_local_experts",), "mixtral"),
    (("num_experts", "moe_intermediate_size"), "qwen3_moe"),
)
#: What every Llama has, and what none has.
LLAMA = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
NO_LLAMA = ("ssm_cfg", "state_size", "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "layers_block_type",
            "kv_lora_rank", "n_routed_experts", "num_experts", "moe_num_experts", "hybrid_override_pattern",
            "attn_layer_period", "d_kv", "is_encoder_decoder", "alibi", "conv_L_cache")


def family(config: Config) -> str:
    """The architecture of *config*: that of its `model_type`, or ``package.module:function``.

    Raises ConfigError for one that ksim does not know, with what to do.
    """
    known, name = catalog.names("compute.architectures"), config.get("model_type", "")
    if not name:
        raise ConfigError(f"{config.name}: model_type", "is missing, so this is no config.json of Hugging Face's; it"
                                                        f" names the family ({', '.join(known)})")
    if name in known or ":" in name:
        return name
    recipe = (f"to add it, write a function (config) -> Decoder into mine.py and set model_type to 'mine:{_word(name)}'"
              " (docs/plugins.md, A model family)")
    raise ConfigError(f"{config.name}: model_type", f"{name!r} is no family that ksim knows ({', '.join(known)})"
                                                    f"{_hint(config, name, known)}; {recipe}")


def _word(name: str) -> str:
    return name if name.isidentifier() else "function"


def _hint(config: Config, name: str, known: list[str]) -> str:
    inner = config.table.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type"):
        said = inner["model_type"]
        return f"; its text_config is of {said!r}: take that part alone as config.json" if said in known else (
            f"; its text_config is of {said!r}, which is not known either")
    if found := alike(config):
        return f"; by its keys it looks like {found}: set model_type to {found!r} in a copy to try"
    close = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; the nearest by name is {close[0]!r}" if close else ""


def alike(config: Config) -> str:
    """The family whose keys *config* has, such as "llama" for any dense model with gated MLPs; "" for none."""
    has = {key for key, value in config.table.items() if value is not None}
    for keys, name in SIGNS:
        if has >= {*keys}:
            return name
    gated = config.table.get("hidden_act", "silu") in ("silu", "gelu_pytorch_tanh")
    return "llama" if gated and has >= {*LLAMA} and has.isdisjoint(NO_LLAMA) else ""
