"""The number formats of a checkpoint by the `quantization_config` of its config.json.

The formats are FP8, whole or in blocks of 128 x 128 (DeepSeek, Qwen, MiniMax), MXFP4 (gpt-oss), NVIDIA's NVFP4 and FP8
(modelopt), AWQ, GPTQ, AutoRound, bitsandbytes, and INT4, INT8, FP8, NVFP4 and MXFP4 of compressed-tensors.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import evolve, field, frozen

from ksim.compute.model import Config
from ksim.compute.notation import Operation
from ksim.compute.notation.product import Product
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import GROUP_SIZES, grouped

__all__ = ["Stored", "layers_as_stored", "stored"]

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
LEFT = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore", "llm_int8_skip_modules")
#: The layer that a pattern speaks of, if it names one.
NUMBERED = re.compile(r"layers\\?\.(\d+)(?!\d)")
REMEDY = "is not read; leave it out and set the engine's quantization instead"


@frozen
class Stored:
    """The format of a checkpoint by the engine's name, its parts in BF16, and the cache that it was made for.

    Layers among the `exceptions` leave further parts in BF16.
    """

    quantization: str = "none"
    unquantized: tuple[str, ...] = ()
    kv_cache_dtype: str = "auto"
    exceptions: Mapping[int, tuple[str, ...]] = field(factory=dict)


def stored(config: Config) -> Stored:
    """The formats of *config*; raises ConfigError for an unknown quantization, or one of half a part."""
    part = config.part("quantization_config")
    if not part.table:
        return Stored()
    method = part.get("quant_method", "")
    if method not in _METHODS:
        raise ConfigError(part.name, f"quant_method {method!r} {REMEDY} ({', '.join(_METHODS)} are read)")
    if not (name := _METHODS[method](part)):
        raise ConfigError(part.name, f"{method!r} in this form {REMEDY}")
    cache = "fp8" if part.get("kv_cache_quant_algo", "") == "FP8" or part.value("kv_cache_scheme") else "auto"
    left = _left_patterns(part)
    if method == "mxfp4":  # of experts alone, whatever else is listed
        return Stored(name, tuple(part for part in MODULES if part != "experts"), cache)
    return _without(config, left, Stored(name, kv_cache_dtype=cache))


def layers_as_stored(layers: Sequence[tuple[Operation, ...]], checkpoint: Stored) -> Sequence[tuple[Operation, ...]]:
    """*layers* with the parts in BF16 that the checkpoint leaves in some of them alone."""
    if not checkpoint.exceptions:
        return layers  # which are the same objects where they are equal
    return [tuple(_kept(op, parts) for op in layer) if (parts := checkpoint.exceptions.get(number)) else layer
            for number, layer in enumerate(layers)]


def _kept(op: Operation, parts: Sequence[str]) -> Operation:
    if isinstance(op, Product) and op.quantized and op.part.removesuffix("_inputs") in parts:
        return evolve(op, weights=DType.BF16, activations=DType.BF16)
    return op


def _left_patterns(part: Config) -> list[str]:
    """The modules left as they are, which GPTQModel lists among its rules, and AutoRound layer by layer."""
    rules = part.get("dynamic", {})
    if others := [rule for rule in rules if not rule.startswith("-:")]:
        raise ConfigError(f"{part.name}: dynamic", f"{others[0]!r} has bits of its own; a rule other than '-:', which"
                                                   f" leaves modules as they are, {REMEDY}")
    return [*(pattern for key in LEFT for pattern in part.texts(key)), *(f"re:{rule[2:]}" for rule in rules),
            *(name for name, said in _own(part) if said.get("bits", 0) >= 16)]


def _own(part: Config) -> Iterator[tuple[str, Config]]:
    """AutoRound's settings of single modules."""
    own = part.part("extra_config")
    return ((name, own.part(name)) for name in own.table)


def _without(config: Config, patterns: Sequence[str], checkpoint: Stored) -> Stored:
    """*checkpoint* without the parts that *patterns* leave as they are, in all layers or in some."""
    count, listed = config.need("num_hidden_layers"), _listed(config.part("quantization_config"))
    numbered: dict[int, list[str]] = {}
    for pattern in patterns:
        for layer in _spoken_of(pattern, count):
            numbered.setdefault(layer, []).append(pattern)
    general = [pattern for pattern in patterns if not _spoken_of(pattern, count)]
    some = {layer: {part for part in MODULES if _left(part, layer, named)} for layer, named in numbered.items()}
    parts = tuple(part for part in MODULES if _left(part, count - 1, general, listed)
                  or all(part in some.get(layer, ()) for layer in range(count)))
    rest = {layer: tuple(part for part in MODULES if part in left and part not in parts)
            for layer, left in some.items() if layer < count}
    return evolve(checkpoint, unquantized=parts, exceptions={layer: left for layer, left in rest.items() if left})


def _spoken_of(pattern: str, count: int) -> Sequence[int]:
    """The layers among *count* that *pattern* may tell apart; empty where it means all alike."""
    if match := NUMBERED.search(pattern):
        return (int(match[1]),)
    return range(count) if pattern.startswith("re:") and re.search(r"\d", pattern) else ()


def _listed(part: Config) -> Sequence[str]:
    """The modules that alone are quantized, where a checkpoint lists these; empty for all."""
    groups, blocks = part.part("config_groups"), part.get("modules_in_block_to_quantize", [])
    targets = [target for group in groups.table for target in groups.part(group).texts("targets")]
    inner = [str(name) for block in blocks for name in (block if isinstance(block, list) else [block])]
    return () if "Linear" in targets else (*targets, *inner)


def _fp8(part: Config, key: str = "weight_block_size") -> str:
    block = part.get(key, [])
    return "fp8" if part.value(key) is None else "fp8_block" if block == [128, 128] else ""


def _modelopt(part: Config) -> str:
    return {"NVFP4": "nvfp4", "FP8": "fp8"}.get(part.get("quant_algo", ""), "")


def _compressed(part: Config) -> str:
    groups = part.part("config_groups")
    names = {_of_group(groups.part(key)) for key in groups.table}
    if len(names) > 1:
        raise ConfigError(f"{part.name}: config_groups", f"layers in {len(names)} formats; that {REMEDY}")
    return names.pop() if names else ""


def _of_group(group: Config) -> str:
    """The format of one of the `config_groups`: weights of *bits*, and activations of as many or not."""
    weights, activations = group.part("weights"), group.part("input_activations")
    strategy, bits = weights.get("strategy", ""), weights.get("num_bits", 0)
    if strategy == "block":
        return _fp8(weights, "block_structure") if weights.value("block_structure") else ""
    both, size = bool(activations.table), weights.get("group_size", 0)
    if weights.get("type", "") == "float":
        return {(4, 16, True): "nvfp4", (4, 16, False): "nvfp4_w4a16", (4, 32, False): "mxfp4", (8, 0, True): "fp8",
                (8, 0, False): "fp8_w8a16"}.get((bits, size, both), "")
    if both:
        whole = strategy in ("channel", "tensor")
        return "int8_w8a8" if bits == activations.get("num_bits", 0) == 8 and whole else ""
    order = weights.value("actorder") in ("group", "dynamic", True)
    return _integers(weights, bits, size if strategy == "group" else -1, not weights.get("symmetric", True), order)


def _integers(part: Config, bits: int, group: int, zeros: bool, act_order: bool = False) -> str:
    """Integer weights, as vLLM's kernels take them; raises ConfigError for other sizes."""
    for what, value, supported in (("weights of {} bits", bits, (4, 8)), ("groups of {} weights", group, GROUP_SIZES)):
        if value not in supported:
            raise ConfigError(part.name, f"{what.format(value)}: vLLM's Marlin kernels take"
                                         f" {', '.join(map(str, supported))}; this {REMEDY}")
    return {grouped(4, 32): "int4_w4a16"}.get(name := grouped(bits, group, zeros, act_order), name)


def _first(part: Config, *keys: str) -> int:
    """The number under the first of *keys* that there is; raises ConfigError for none."""
    if key := next((key for key in keys if part.value(key) is not None), ""):
        return part.get(key, 0)
    raise ConfigError(f"{part.name}: {keys[0]}", "is missing")


def _awq(part: Config) -> str:
    """AutoAWQ's: its files have zero points, whether these are used or not."""
    name = _integers(part, _first(part, "bits", "w_bit"), _first(part, "group_size", "q_group_size"), zeros=True)
    return "awq" if name == grouped(4, 128, zeros=True) else name


def _gptq(part: Config) -> str:
    """AutoGPTQ's and GPTQModel's: their files have zero points, even where all are alike (`sym`)."""
    if part.get("lm_head", False):
        raise ConfigError(f"{part.name}: lm_head", f"true: a quantized head {REMEDY}")
    name = _integers(part, _first(part, "bits"), _first(part, "group_size"), True, part.get("desc_act", False))
    return "gptq" if name == grouped(4, 128, zeros=True) else name


def _auto_round(part: Config) -> str:
    if part.get("data_type", "int") != "int":
        return ""
    bits, group = _first(part, "bits"), _first(part, "group_size")
    for name, module in _own(part):
        own = (module.get("bits", bits), module.get("group_size", group))
        if own[0] < 16 and own != (bits, group):
            raise ConfigError(f"{part.name}: extra_config", f"{name} has bits or groups of its own; that {REMEDY}")
    return _integers(part, bits, group, zeros=True)


def _bitsandbytes(part: Config) -> str:
    if part.get("load_in_8bit", False) or part.get("_load_in_8bit", False):
        return "bitsandbytes_8bit"
    return "bitsandbytes" if part.get("bnb_4bit_use_double_quant", False) else "bitsandbytes_single"


_METHODS: dict[str, Callable[[Config], str]] = {
    "fp8": _fp8, "fbgemm_fp8": lambda _: "fp8", "mxfp4": lambda _: "mxfp4", "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "compressed-tensors": _compressed, "awq": _awq, "gptq": _gptq,
    "auto-round": _auto_round, "intel/auto-round": _auto_round, "bitsandbytes": _bitsandbytes}


def _left(part: str, layer: int, patterns: Sequence[str], listed: Sequence[str] = ()) -> bool:
    """Whether *patterns* leave a part of *layer* as it is, or it is not among those *listed*, if any are."""
    left = {any(_meant(pattern, name) for pattern in patterns for name in _names(layer, module))
            or (bool(listed) and not any(_meant(pattern, name) for pattern in listed for name in _names(layer, module)))
            for module in MODULES[part]}
    if len(left) > 1:
        raise ConfigError("quantization_config", f"quantizes some projections of the {part} and not others; that"
                                                 f" {REMEDY}")
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
