"""Modules of a checkpoint that predict further tokens (MTP): which a config has, and what drafts with them.

A module norms the embedding of a token and the hidden state before it, projects both to one, and goes through a layer
like the last of the target; embedding and head are the target's (vLLM 0.33, model_executor/models/*_mtp.py).
"""

from collections.abc import Sequence
from itertools import chain

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.drafters.drafter import Drafter
from ksim.compute.drafters.heads import EMBEDDING, HIDDEN, Operations, drafting, projection, reads_of, sampling
from ksim.compute.further import FurtherModel
from ksim.compute.latent import AttendSparse
from ksim.compute.model import Config, Decoder, Model
from ksim.compute.model_ops import pointwise
from ksim.compute.notation import Operation
from ksim.foundation.errors import ConfigError

__all__ = ["drafter", "parameters", "with_modules"]

#: Families whose projection every rank computes, and those whose ranks split it; by the key that counts modules.
WHOLE = dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "mimo",
                       "ernie4_5_moe"), "num_nextn_predict_layers")
SPLIT = {**dict.fromkeys(("qwen3_next", "exaone_moe", "nemotron_h"), "num_nextn_predict_layers"),
         **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"), "mtp_num_hidden_layers")}
#: Families that have a module where the config does not count any.
ALWAYS = SPLIT.keys() - {"nemotron_h"}
#: Families whose modules have a layer for each kind that a pattern lists.
PATTERNS = ("nemotron_h",)
#: Families whose modules have a dense layer like the target's first.
DENSE = ("ernie4_5_moe",)
NORMS = (pointwise("rms_norm", "tm->tm", "embedding_norm", scale="m"),
         pointwise("rms_norm", "tm->tm", "hidden_norm", scale="m"))


def with_modules(config: Config, target: Decoder) -> Decoder:
    """*target* with the modules of the checkpoint that *config* describes."""
    own, shares = _modules(config, target), config.get("index_share_for_mtp_iteration", False)
    return evolve(target, mtp=own, mtp_shares_indices=shares) if own else target


def _modules(config: Config, target: Decoder) -> tuple[Operations, ...]:
    """Those of families that ksim knows."""
    family = config.get("model_type", "")
    key = (WHOLE | SPLIT).get(family, "")
    text = config.part("text_config") if config.value("text_config") else config
    count = text.need(key, 1) if family in ALWAYS else text.count(key) if key else 0
    layer = chain(*_layers(text, target, family)) if count else ()
    return ((*NORMS, *projection("eh_proj", split=family in SPLIT), *layer),) * count


def _layers(config: Config, target: Decoder, family: str) -> list[Operations]:
    """The layers of a module: one like the last of *target*, or the first; or one of each kind of a pattern."""
    wanted = [*config.get("mtp_hybrid_override_pattern", "")] or config.texts("mtp_layers_block_type")
    if family not in PATTERNS or not wanted:
        return [tuple(target.layers[0] if family in DENSE else _last(target))]
    kinds = [*config.get("hybrid_override_pattern", "")] or config.texts("layers_block_type")
    if strangers := [kind for kind in wanted if kind not in kinds]:
        raise ConfigError(f"{config.name}: mtp_hybrid_override_pattern", f"{strangers[0]!r} is no layer of the model")
    last = {kind: tuple(layer) for kind, layer in zip(kinds, target.layers, strict=True)}
    return [last[kind] for kind in wanted]


def drafter(target: Model, tokens: int) -> Drafter:
    """The modules of *target* that draft so many *tokens*: one again and again, or all in turns, as in vLLM."""
    decoder = target.decoder
    sizes = {**decoder.sizes, **reads_of(decoder.sizes)}
    head = drafting(decoder, sizes, (*EMBEDDING, HIDDEN), (*decoder.mtp[0],), (blocks.norm("final_norm"), *sampling()))
    model = FurtherModel(f"MTP of {target.name}", head, prefix="draft.")
    later = evolve(model, decoder=evolve(head, layers=(_without_indexer(decoder.mtp[0]),)))
    count = len(decoder.mtp)
    return Drafter(model, later if decoder.mtp_shares_indices else model, modules=count, turns=min(count, tokens) > 1)


def _last(target: Decoder) -> Sequence[Operation]:
    """The last layer; of sparse attention, the last with an indexer of its own, as modules have them."""
    return next(layer for layer in reversed(target.layers)
                if all(op.own for op in layer if isinstance(op, AttendSparse)))


def _without_indexer(module: Sequence[Operation]) -> Operations:
    """*module* where it attends to keys that were chosen before, and an indexer has nothing to do."""
    return tuple(evolve(op, own=False) if isinstance(op, AttendSparse) else op for op in module
                 if not op.label.startswith("index_"))


def parameters(target: Model) -> int:
    """Weights of the target's modules, without the copies of its embedding and head that checkpoints may have."""
    return drafter(target, 1).parameters() if target.decoder.mtp else 0
