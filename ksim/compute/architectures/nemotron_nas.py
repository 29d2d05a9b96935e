"""Llama-Nemotron Super and Ultra (`nemotron-nas`): Llamas, of whose layers a search kept attention or not, and an MLP
of one size or another or none.

Every size of MLP has an index of its own, a Greek letter.
"""

from collections.abc import Mapping

from ksim.compute import blocks
from ksim.compute.model import Config, Decoder
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["nemotron_nas"]

#: The first Greek letter.
ALPHA = 0x3B1
#: vLLM rounds sizes of MLPs up to multiples of this (nemotron_nas.py).
MULTIPLE = 256
#: What a layer may lack or have; anything else in its description must be off.
READ = ("no_op", "n_heads_in_group", "ffn_mult", "intermediate_size", "hidden_act")


def nemotron_nas(config: Config) -> Decoder:
    kept = _kept(config)
    heads = config.need("num_attention_heads")
    groups = {part["n_heads_in_group"] for part, _ in kept if not part["no_op"]}
    if len(groups) != 1:
        raise ConfigError(f"{config.name}: block_configs", f"expected one n_heads_in_group, not {sorted(groups)}")
    config = config.instead({**config.table, "num_key_value_heads": heads // groups.pop(),
                             "intermediate_size": MULTIPLE})
    sizes = {size: chr(ALPHA + number) for number, size in enumerate(dict.fromkeys(
        _size(config, ffn) for _, ffn in kept if not ffn["no_op"]))}
    attention = (blocks.norm("attention_norm"), *blocks.attention(config))
    layers = [(*(() if part["no_op"] else attention), *(() if ffn["no_op"] else _mlp(sizes[_size(config, ffn)])))
              for part, ffn in kept]
    return blocks.decoder(config, layers, tied=False, **{letter: size for size, letter in sizes.items()})


def _mlp(index: str) -> blocks.Operations:
    return (
        blocks.norm("mlp_norm"),
        op(f"tm,mg{index}->tg{index}", "gate_up", parallel=index, part="mlp"),
        pointwise("silu_mul", f"tg{index}->t{index}", "act", parallel=index),
        op(f"t{index},{index}m->tm", "down", parallel=index, part="mlp"),
    )


def _size(config: Config, ffn: Mapping[str, float]) -> int:
    if ffn.get("intermediate_size"):
        return int(ffn["intermediate_size"])
    return -(int(-2 * ffn["ffn_mult"] * config.need("hidden_size") / 3) // MULTIPLE) * MULTIPLE


def _kept(config: Config) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    """Attention and MLP of each layer as the config describes them; raises ConfigError for what is not modelled."""
    blocks.only(config, hidden_act="silu", mlp_bias=False)
    layers, count = config.get("block_configs", []), config.need("num_hidden_layers")
    if len(layers) != count:
        raise ConfigError(f"{config.name}: block_configs", f"expected {count} layers, not {len(layers)}")
    for layer in layers:
        for part in (layer["attention"], layer["ffn"]):
            if strangers := [key for key, value in part.items() if value and key not in READ]:
                raise ConfigError(f"{config.name}: block_configs", f"{strangers[0]} is not modelled")
    return [(layer["attention"], layer["ffn"]) for layer in layers]
