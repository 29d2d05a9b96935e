"""What a checkpoint says of its own number formats: the `quantization_config` of a config.json.

Read are the common ones: FP8, whole or in blocks of 128 x 128 (DeepSeek, Qwen, MiniMax), MXFP4 (gpt-oss), NVIDIA's
NVFP4 and FP8 (modelopt), and INT4 in groups of 32, FP8 and NVFP4 of compressed-tensors.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from attrs import frozen

from ksim.compute.model import Config
from ksim.foundation.errors import ConfigError

__all__ = ["Stored", "stored"]

#: Names that projections of each part have in checkpoints, after their layer's.
MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.o_proj"),
    "mlp": ("mlp.gate_proj", "mlp.down_proj"),
    "shared_experts": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.down_proj"),
    "experts": ("mlp.experts.0.gate_proj", "mlp.experts.0.down_proj"),
}
#: What some families say instead.
OTHERWISE = {"mlp.experts.0.gate_proj": "block_sparse_moe.experts.0.w1",
             "mlp.experts.0.down_proj": "block_sparse_moe.experts.0.w2",
             "mlp.shared_experts.gate_proj": "mlp.shared_expert.gate_proj",
             "mlp.shared_experts.down_proj": "mlp.shared_expert.down_proj",
             "self_attn.q_proj": "self_attn.q_a_proj"}
#: Keys that list the modules left as they are, each method's own.
LEFT = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore")
REMEDY = "is not read; leave it out and set the engine's quantization instead"


@frozen
class Stored:
    """What a checkpoint is stored in, by the engine's name, the parts left in BF16, and the cache it was made for."""

    quantization: str = "none"
    unquantized: tuple[str, ...] = ()
    kv_cache_dtype: str = "auto"


def stored(config: Config) -> Stored:
    """What *config* says; raises ConfigError for a quantization that is not known, or that cuts through a part."""
    part = config.part("quantization_config")
    if not part.table:
        return Stored()
    method = part.get("quant_method", "")
    if method not in _METHODS:
        raise ConfigError(part.name, f"quant_method {method!r} {REMEDY} ({', '.join(_METHODS)} are read)")
    name = _METHODS[method](part)
    if not name:
        raise ConfigError(part.name, f"{method!r} in this form {REMEDY}")
    left = [pattern for key in LEFT for pattern in part.texts(key)]
    cache = "fp8" if part.get("kv_cache_quant_algo", "") == "FP8" or part.value("kv_cache_scheme") else "auto"
    if name == "mxfp4":  # of experts alone, whatever else is listed
        return Stored(name, tuple(part for part in MODULES if part != "experts"), cache)
    return Stored(name, tuple(part for part in MODULES if _left(config, part, left)), cache)


def _fp8(part: Config, key: str = "weight_block_size") -> str:
    block = part.get(key, [])
    return "fp8" if part.value(key) is None else "fp8_block" if block == [128, 128] else ""


def _modelopt(part: Config) -> str:
    return {"NVFP4": "nvfp4", "FP8": "fp8"}.get(part.get("quant_algo", ""), "")


def _compressed(part: Config) -> str:
    groups = part.part("config_groups")
    if len(groups.table) != 1:
        return ""
    group = groups.part(*groups.table)
    weights, activations = group.part("weights"), group.part("input_activations")
    if weights.value("strategy") == "block":
        return _fp8(weights, "block_structure") if weights.value("block_structure") else ""
    shape = (weights.get("type", ""), weights.get("num_bits", 0), weights.get("group_size", 0), bool(activations.table))
    known = {("int", 4, 32, False): "int4_w4a16", ("float", 4, 16, True): "nvfp4", ("float", 8, 0, True): "fp8",
             ("float", 8, 0, False): "fp8_w8a16"}
    return known.get(shape, "")


_METHODS: dict[str, Callable[[Config], str]] = {
    "fp8": _fp8, "mxfp4": lambda _: "mxfp4", "modelopt": _modelopt, "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed}


def _left(config: Config, part: str, patterns: Sequence[str]) -> bool:
    """Whether *patterns* leave a part as it is in the model's last layer; a dense MLP, in its first."""
    layer = 0 if part == "mlp" else config.need("num_hidden_layers") - 1
    left = {any(_meant(pattern, name) for pattern in patterns for name in _names(layer, module))
            for module in MODULES[part]}
    if len(left) > 1:
        raise ConfigError(f"{config.name}: quantization_config",
                          f"quantizes some projections of the {part} and not others; that {REMEDY}")
    return left.pop()


def _names(layer: int, module: str) -> Iterator[str]:
    for suffix in dict.fromkeys((module, OTHERWISE.get(module, module))):
        for prefix in ("model.", "language_model.model.", "language_model."):
            yield f"{prefix}layers.{layer}.{suffix}"


def _regular(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"quantization_config: {pattern}", f"is no regular expression: {error}") from None


def _meant(pattern: str, name: str) -> bool:
    """Whether *pattern*, a regular expression after ``re:``, a glob, or a module's path or part of it, means *name*."""
    if pattern.startswith("re:"):
        return _regular(pattern[3:]).match(name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    return f".{pattern}." in f".{name}."
