"""Models by name: the config.json that a name stands for, and the family of models that it belongs to.

Hugging Face's names stand for the catalogue's, and may say in which format the weights are.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ksim.compute import drafters
from ksim.compute.architectures import ALIASES, families
from ksim.compute.model import Config, Model
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, nearest
from ksim.foundation.files import is_there
from ksim.specs.shard import QUANTIZATIONS, grouped

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
    model = Model(name, drafters.with_modules(config, decoder), next(iter(config.texts("architectures")), ""))
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


_BITS = "-?int4|-?4-?bits?"
#: Endings that say how weights are stored: the pattern, and the settings that follow.
_FORMATS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (r"(nv|modelopt-)?fp4(-v\d)?", {"quantization": "nvfp4"}),
    (r"mxfp4", {"quantization": "mxfp4"}),
    (r"(w8a8-|quantized-)?fp8(-w8a8)?(-dynamic|-static|-kv|-tensor|-block)?", {"quantization": "fp8"}),
    (rf"int4-awq|awq({_BITS}|-w4a16|-marlin|-gemm|-sym|-asym)*", {"quantization": "awq"}),
    (r"int8-gptq|gptq-?(w8a16|int8|8-?bits?)", {"quantization": "int8_w8a16_g128_zp"}),
    (rf"int4-gptq|gptq({_BITS}|-marlin)*", {"quantization": "gptq"}),
    (r"w4a16-asym", {"quantization": "int4_w4a16_g128_zp"}),
    (rf"(quantized[.-])?w4a16|(autoround-)?int4(-autoround|-mixed|-w4a16)?|autoround({_BITS})?",
     {"quantization": "int4_w4a16_g128"}),
    (r"(quantized[.-])?(int8-)?w8a16", {"quantization": "int8_w8a16_channel"}),
    (r"(quantized[.-])?w8a8(-int8|-dynamic-per-token)?|int8(-w8a8|-dynamic)?", {"quantization": "int8_w8a8"}),
    (r"(unsloth-)?bnb(-nf4)?(-?4bit)?|nf4", {"quantization": "bitsandbytes"}),
    (r"(unsloth-)?bnb-?8bit", {"quantization": "bitsandbytes_8bit"}),
    (r"bf16", {"quantization": "none"}),
)
#: The size of groups behind a format: -g64, -64g.
_GROUP = re.compile(r"-(?:g(32|64|128)|(32|64|128)g)(-actorder[-_]true)?$")
_REFUSED = (r"gguf|(4|8)bit|exl\d|mlx|ud-.*|q\d_.*")
#: A release's date behind a name: 0528, 2507, 2024-07-18, v0.3.
_DATE = re.compile(r"-(?:\d{4}(?:-\d\d){0,2}|v\d+(?:\.\d+)*)$")
#: A folder of Hugging Face's cache: models--ORG--NAME/snapshots/REVISION.
_CACHED = re.compile(r"(?:.*/)?models--([^/]+?)--([^/]+)(?:/.*)?")
#: Organisations whose FP8 is in blocks of 128 x 128, as DeepSeek's.
_BLOCKS = ("qwen", "minimaxai", "deepseek-ai", "zai-org/glm-5")


@frozen
class ModelName:
    """A model of the catalogue, or a path, with the settings that the name implies and what was assumed."""

    name: str
    serve: Mapping[str, Any] = field(factory=dict)
    assumed: tuple[str, ...] = ()


def named(text: str, where: str, folder: Path | None = None, remedy: str = "--model") -> ModelName:
    """The model that *text* names: on Hugging Face, in the catalogue, or by its path, from *folder*.

    Raises ConfigError for one that is not known; it says what to do, with the option *remedy*.
    """
    path = (folder or Path()) / text
    if catalog.is_file(text) and (is_there(path) or "/" not in text):
        return ModelName(str(path))
    if text in catalog.entries("models"):
        return ModelName(text)
    if is_there(path / "config.json"):
        return ModelName(str(path))
    return _known(_hub_name(text), where, remedy)


def _hub_name(text: str) -> str:
    """ORG/NAME of a folder in Hugging Face's cache; any other *text* as it is."""
    cached = _CACHED.fullmatch(text)
    return f"{cached[1]}/{cached[2]}" if cached else text


def _known(text: str, where: str, remedy: str) -> ModelName:
    if name := _exact().get(text.lower()):
        return ModelName(name)
    stem = text.rstrip("/").rpartition("/")[2].lower()
    plain, serve = _without_format(stem, text.lower())
    if not serve and unknown_format(text):
        raise ConfigError(where, f"{text}: weights in that format are not simulated; name the model, or a config.json,"
                                 f" with {remedy}, and a format with --quantization")
    name, stem, notes = _of_stem(plain)
    if not name:
        raise ConfigError(where, _unknown(text, plain, remedy))
    serve = {**_table()["serve"].get(plain, _table()["serve"].get(stem, {})), **serve}
    return ModelName(name, serve, (f"taken as {name} of the catalogue{notes}", *([_said(serve)] if serve else [])))


def format_of(text: str) -> ModelName:
    """What a name on Hugging Face says of the format of the weights, of whichever model: its settings, and the note."""
    text = _hub_name(text)
    _, serve = _without_format(text.rstrip("/").rpartition("/")[2].lower(), text.lower())
    return ModelName("", serve, (_said(serve),) if serve else ())


def unknown_format(text: str) -> bool:
    """Whether a name ends in a format that is not simulated, such as GGUF."""
    return re.search(rf"-({_REFUSED})$", _hub_name(text).rstrip("/").lower()) is not None


def _said(serve: Mapping[str, Any]) -> str:
    """What settings follow from a name, and what is assumed of the checkpoint."""
    said = ", ".join(f"{key} = {value}" for key, value in serve.items())
    chosen = QUANTIZATIONS.get(serve.get("quantization", ""))
    group = f"groups of {chosen.weights.group} weights, " if chosen and chosen.weights.group else ""
    return (f"its name says {said}; assumed are {group}all layers in that format, embedding and head in 16 bits; its"
            f" config.json says what it has: download it, and name it instead")


def _without_format(stem: str, text: str) -> tuple[str, Mapping[str, Any]]:
    """*stem* without the format of its weights, and the settings that follow."""
    group = _GROUP.search(stem)
    said = stem[:group.start()] if group else stem
    for pattern, serve in _FORMATS:
        if match := re.search(rf"[-_.]({pattern})$", said):
            return said[:match.start()], _of_owner(text, _in_groups(dict(serve), group))
    return stem, {}


def _in_groups(serve: dict[str, Any], group: re.Match[str] | None) -> dict[str, Any]:
    """*serve* with the size of groups, and the activation order, that a name says."""
    if group is None:
        return serve
    whole = grouped(4, 128, zeros=True) if serve["quantization"] in ("awq", "gptq") else serve["quantization"]
    name = whole.replace("_g128", f"_g{group[1] or group[2]}") + "_act_order" * bool(group[3])
    return {**serve, "quantization": name} if name in QUANTIZATIONS and name != grouped(4, 128, zeros=True) else serve


def _of_owner(text: str, serve: dict[str, Any]) -> Mapping[str, Any]:
    """What the organisation's checkpoints in that format have of their own."""
    if serve["quantization"] == "fp8" and text.startswith(_BLOCKS):
        return {"quantization": "fp8_block"}
    if text.startswith("meta-llama/") and serve["quantization"] == "fp8":
        return {**serve, "unquantized": ["attention"]}
    if text.startswith("nvidia/") and "deepseek" in text:
        return {**serve, "unquantized": ["attention"]}
    return serve


def _of_stem(stem: str) -> tuple[str, str, str]:
    """The catalogue's name of a *stem* or of it with endings cut off, what is left, and what to say of the endings.

    The name is empty if there is none.
    """
    names = _names()
    cut: list[str] = []
    while stem:
        if stem in names:
            return names[stem], stem, f"; {', '.join(reversed(cut))} changes no shape" if cut else ""
        ending = _ending(stem)
        if not ending:
            break
        cut.append(ending.lstrip("-"))
        stem = stem[:-len(ending)]
    return "", "", ""


def _ending(stem: str) -> str:
    if date := _DATE.search(stem):
        return date[0]
    return next((f"-{word}" for word in _table()["suffixes"] if stem.endswith(f"-{word}")), "")


@cache
def _table() -> Mapping[str, Any]:
    return catalog.load("names", "models")


@cache
def _exact() -> Mapping[str, str]:
    """The catalogue's models by the name that their config.json has."""
    models = {name: catalog.load("models", name).get("_name_or_path", name) for name in catalog.entries("models")}
    return {full.lower(): name for name, full in models.items()}


@cache
def _names() -> Mapping[str, str]:
    """The catalogue's models by all stems that mean them."""
    own = {name: name for name in catalog.entries("models")}
    full = {known.rpartition("/")[2]: name for known, name in _exact().items()}
    full |= {_without_format(stem, "")[0]: name for stem, name in full.items()}
    return {**full, **_table()["names"], **own}


def _unknown(text: str, stem: str, remedy: str) -> str:
    close = get_close_matches(stem, _names(), n=3, cutoff=0.6)
    near = f"; near by name are {', '.join(dict.fromkeys(_names()[name] for name in close))}" if close else ""
    page = f" (huggingface.co/{text}/raw/main/config.json)" if re.fullmatch(r"[\w.-]+/[\w.-]+", text) else ""
    return (f"no model of the catalogue is {text!r}{near}; download its config.json{page} and name the file: {remedy}"
            f" config.json")
