"""Models by name: the config.json that a name stands for, and the family of models that it belongs to."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ksim.compute import drafters
from ksim.compute.architectures import ALIASES, families
from ksim.compute.model import Config, Model
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, nearest

__all__ = ["family", "lookalike", "model_of", "model_of_table"]


#: Two names of one table: how positions are encoded.
_ROPE = ("rope_scaling", "rope_parameters")
#: Keys that tell a family, and the family to try; the most specific come first.
SIGNS = (
    (("mamba_d_ssm",), "falcon_h1"), (("mamba_n_heads", "shared_intermediate_size"), "granitemoehybrid"),
    (("mamba_num_heads", "ssm_state_size"), "nemotron_h"), (("attn_layer_period", "mamba_dt_rank"), "jamba"),
    (("linear_num_value_heads",), "qwen3_next"), (("index_topk", "kv_lora_rank"), "glm_moe_dsa"),
    (("kv_lora_rank", "q_lora_rank"), "deepseek_v3"), (("num_local_experts",), "mixtral"),
    (("moe_num_experts",), "ernie4_5_moe"), (("num_experts", "shared_expert_intermediate_size"), "qwen2_moe"),
    (("num_experts", "moe_intermediate_size"), "qwen3_moe"), (("n_embd", "n_layer", "n_head"), "gpt2"),
)
#: Keys that every Llama has, and keys that no Llama has.
LLAMA = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
NO_LLAMA = ("ssm_cfg", "state_size", "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "layers_block_type",
            "kv_lora_rank", "n_routed_experts", "num_experts", "moe_num_experts", "hybrid_override_pattern",
            "attn_layer_period", "d_kv", "is_encoder_decoder", "alibi", "conv_L_cache")
#: Models that generate nothing, by family and by how their architectures end.
ENCODERS = {"albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "modernbert",
            "mpnet", "new", "nomic_bert", "roberta", "t5", "xlm-roberta", "xlm-roberta-xl"}
ENCODING = ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering", "RewardModel",
            "ForTextEncoding", "ForRetrieval", "Model")
SPEAKING = ("LMHeadModel", "ChatModel", "OmniModel")
#: Families that generate, and why ksim does not serve them.
REFUSED = {
    "ernie4_5_vl_moe": "sends tokens of images to other experts than those of text, and ksim's layers do not know which"
                       " tokens are of images",
    "mllama": "attends to images across a second sequence, which ksim's cache does not keep, and no vLLM that ksim"
              " simulates serves it (the last one was 0.10.2)",
}


def model_of(name: str, overrides: Mapping[str, Any] = {}) -> Model:
    """Read a model: a catalogue name, or the path of a config.json or of its folder, with *overrides* of its keys.

    Raises UnknownName, DataError or ConfigError.
    """
    return model_of_table(name, _overridden(catalog.load("models", name), overrides))


def _overridden(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with *overrides*, as vLLM's ``--hf-overrides`` has them (0.33, config/model.py).

    A table takes the place of another, but for a config in the config, such as text_config, which keeps its other keys.
    """
    rope = {*_ROPE} & {*overrides}
    kept = {key: value for key, value in table.items() if not (rope and key in _ROPE)}
    inner = {key: _overridden(table[key], value) for key, value in overrides.items() if key.endswith("_config")
             and isinstance(value, Mapping) and isinstance(table.get(key), Mapping)}
    return {**kept, **overrides, **inner}


def model_of_table(name: str, table: Mapping[str, Any]) -> Model:
    """The model that a config.json with the content *table* describes; *name* is for messages.

    Raises ConfigError, also for a key that ksim does not know; a family of the user's own may leave keys unread.
    """
    config = Config(name, table)
    built = family(config)
    decoder = catalog.find("compute.architectures", built)(config)
    model = Model(name, drafters.with_modules(config, decoder))
    if ":" not in built:
        config.check_all_read()
    return model


def family(config: Config) -> str:
    """The architecture that builds *config*: the one of its `model_type`, or a user's ``package.module:function``.

    Raises ConfigError for a family that ksim does not know; the message says how to go on.
    """
    name = config.get("model_type", "")
    if not name:
        raise ConfigError(f"{config.name}: model_type", "is missing, so this is no config.json of Hugging Face's, where"
                                                        " it names the family, such as 'llama'")
    if ":" in name:
        return name
    _check_generates(config, name)
    if name in REFUSED:
        raise ConfigError(f"{config.name}: model_type", f"{name!r} {REFUSED[name]}")
    if (module := name.replace("-", "_")) in (known := families()):
        return ALIASES.get(module, module)
    recipe = (f"to add it, write a function (config) -> Decoder into mine.py and set model_type to 'mine:{_word(name)}'"
              f" (docs/plugins.md, A model family); ksim knows {nearest(name, known, 'docs/models.md')}")
    hint = _hint(config, name, known)
    raise ConfigError(f"{config.name}: model_type", f"{name!r} is no family that ksim knows{hint}; {recipe}")


def _check_generates(config: Config, name: str) -> None:
    """Raise ConfigError where the model encodes, embeds, ranks or classifies; drafters (EAGLE) are models, too."""
    others = [each for each in config.texts("architectures") if each.endswith(ENCODING) and not each.endswith(SPEAKING)
              and "Eagle" not in each]
    if name in ENCODERS or others:
        raise ConfigError(f"{config.name}: {'architectures' if others else 'model_type'}",
                          f"{(others or [name])[0]!r} encodes, embeds or classifies; ksim serves decoders that generate"
                          " tokens, and no others")


def _word(name: str) -> str:
    """*name* as a function might be called."""
    return name if name.isidentifier() else "function"


def _hint(config: Config, name: str, known: list[str]) -> str:
    """What to try in place of *name*, a family that is not *known*."""
    inner = config.table.get("text_config")
    if isinstance(inner, dict) and inner.get("model_type"):
        said = inner["model_type"]
        return f"; its text_config is of {said!r}: take that part alone as config.json" if said in known else (
            f"; its text_config is of {said!r}, which is not known either")
    if similar := lookalike(config):
        return f"; by its keys it looks like {similar}: set model_type to {similar!r} in a copy to try"
    close = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; the nearest by name is {close[0]!r}" if close else ""


def lookalike(config: Config) -> str:
    """The family that *config* resembles by its keys, such as "llama" for any dense gated model; "" for none."""
    has = {key for key, value in config.table.items() if value is not None}
    for keys, name in SIGNS:
        if has >= {*keys}:
            return name
    gated = config.table.get("hidden_act", "silu") in ("silu", "gelu_pytorch_tanh")
    return "llama" if gated and has >= {*LLAMA} and has.isdisjoint(NO_LLAMA) else ""
