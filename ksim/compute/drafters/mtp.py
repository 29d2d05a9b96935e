"""Modules of a checkpoint that predict further tokens (MTP): which a config has, and what drafts with them.

A module norms the embedding of a token and the hidden state before it, projects both to one, and goes through a layer
like the last of the target; embedding and head are the target's (vLLM 0.33, model_executor/models/*_mtp.py).
"""

from ksim.compute import blocks
from ksim.compute.drafters.drafter import Drafter
from ksim.compute.drafters.heads import EMBEDDING, HIDDEN, Operations, drafting, projection, reads_of, sampling
from ksim.compute.further import FurtherModel
from ksim.compute.model import Config, Decoder, Model
from ksim.compute.model_ops import pointwise

__all__ = ["drafter", "modules", "parameters"]

#: Families whose projection every rank computes, and those whose ranks split it; by the key that counts modules.
WHOLE = dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "mimo",
                       "ernie4_5_moe"), "num_nextn_predict_layers")
SPLIT = {"qwen3_next": "num_nextn_predict_layers", "exaone_moe": "num_nextn_predict_layers",
         **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"), "mtp_num_hidden_layers")}
#: Families whose modules have a dense layer like the target's first.
DENSE = ("ernie4_5_moe",)
NORMS = (pointwise("rms_norm", "tm->tm", "embedding_norm", scale="m"),
         pointwise("rms_norm", "tm->tm", "hidden_norm", scale="m"))


def modules(config: Config, target: Decoder) -> tuple[Operations, ...]:
    """The modules of the checkpoint that *config* describes and that makes *target*: those of known families."""
    family = config.get("model_type", "")
    key = (WHOLE | SPLIT).get(family, "")
    text = config.part("text_config") if config.value("text_config") else config
    count = text.need(key, 1) if family in SPLIT else text.count(key) if key else 0
    layer = target.layers[0 if family in DENSE else -1]
    return ((*NORMS, *projection("eh_proj", split=family in SPLIT), *layer),) * count


def drafter(target: Model, tokens: int) -> Drafter:
    """The modules of *target* that draft so many *tokens*: one again and again, or all in turns, as in vLLM."""
    decoder = target.decoder
    sizes = {**decoder.sizes, **reads_of(decoder.sizes)}
    head = drafting(decoder, sizes, (*EMBEDDING, HIDDEN), (*decoder.mtp[0],), (blocks.norm("final_norm"), *sampling()))
    model = FurtherModel(f"MTP of {target.name}", head, prefix="draft.")
    return Drafter(model, model, modules=len(decoder.mtp), turns=min(len(decoder.mtp), tokens) > 1)


def parameters(target: Model) -> int:
    """Weights of the target's modules, without the copies of its embedding and head that checkpoints may have."""
    return drafter(target, 1).parameters() if target.decoder.mtp else 0
