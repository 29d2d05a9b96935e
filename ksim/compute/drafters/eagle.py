"""EAGLE and EAGLE-3: heads of their own checkpoints, a Llama's layer each, over hidden states of the target.

EAGLE (arXiv 2401.15077) projects the embedding of a token and the target's last hidden state to one (vLLM 0.33,
model_executor/models/llama_eagle.py).  EAGLE-3 (arXiv 2503.01840) projects hidden states of three of the target's
layers to one, once a step, reads it beside the embedding, and may sample from a vocabulary of its own
(llama_eagle3.py).  Embeddings, and EAGLE's head, are the target's: checkpoints that have copies share them in vLLM.
"""

from collections.abc import Mapping

from attrs import evolve

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.drafters.drafter import Drafter
from ksim.compute.drafters.heads import EMBEDDING, HIDDEN, Operations, drafting, sampling
from ksim.compute.further import FurtherModel
from ksim.compute.model import Config, Decoder, Model
from ksim.compute.model_ops import op, pointwise
from ksim.foundation.errors import ConfigError

__all__ = ["eagle", "eagle3"]

#: Families of heads that are a Llama's layer, and those whose queries and keys are normed.
LLAMAS, NORMED = ("llama", "qwen3", "eagle"), ("qwen3",)
#: What EAGLE-3's own code calls heads that are a Llama's layer, whatever family their target is of.
LLAMA3 = "LlamaForCausalLMEagle3"
#: What a head of three layers' states gets of each: hidden state and residual added up, side by side.
STATES = (pointwise("add", "tO,tO->tO", "states_add"), pointwise("copy", "tO->tO", "states_concat"))


def eagle(config: Config, target: Model) -> Drafter:
    """The head that the config.json of an EAGLE checkpoint describes; raises ConfigError for one of another target."""
    base = _llama(config, target)
    if base.sizes["m"] != target.decoder.sizes["m"]:
        raise ConfigError(f"{config.name}: hidden_size", f"{base.sizes['m']} is not the {target.decoder.sizes['m']} of"
                                                         f" {target.name}, whose hidden states the head reads")
    takes = (*EMBEDDING, HIDDEN, op("tO,Om->tm", "fc"))
    _, *layer = base.layers[0]  # without a norm before attention
    head = drafting(base, {**base.sizes, "O": 2 * base.sizes["m"]}, takes, tuple(layer),
                    (pointwise("add", "tm,tm->tm", "final_add"), *sampling()))
    model = FurtherModel(config.name, head, prefix="draft.")
    return Drafter(model, model)


def eagle3(config: Config, target: Model) -> Drafter:
    """The head that the config.json of an EAGLE-3 checkpoint describes; raises ConfigError for another target's."""
    base, inner = _llama(config, target), _inner(config)
    blocks.only(inner, norm_before_fc=False, fc_norm=False)
    wide, states = target.decoder.sizes["m"], inner.need("num_aux_hidden_states", 3)
    sizes = {**base.sizes, "O": states * inner.need("target_hidden_size", wide), "B": 2 * base.sizes["m"],
             "D": config.need("draft_vocab_size", inner.need("draft_vocab_size", base.sizes["V"]))}
    embedding = EMBEDDING if base.sizes["m"] == wide else blocks.embedding()
    samples = sampling(own=True, reduced=sizes["D"] != sizes["V"])
    ends = (blocks.norm("final_norm"), *samples)
    first = drafting(base, sizes, (*STATES, op("tO,Om->tm", "fc"), *embedding, HIDDEN), _wide_layer(base), ends)
    later = evolve(first, embedding=(*embedding, HIDDEN))
    return Drafter(FurtherModel(config.name, first, prefix="draft."), FurtherModel(config.name, later, prefix="draft."))


def _wide_layer(base: Decoder) -> Operations:
    """The layer of *base* with queries, keys and values of the embedding and the hidden state side by side."""
    _, qkv, *rest = base.layers[0]
    wide = op("tB,BiKh->tiKh", "qkv", parallel="K", bias=getattr(qkv, "bias", False), part="attention_inputs")
    return (blocks.inner_norm("embedding_norm"), blocks.inner_norm("hidden_norm"), wide, *rest)


def _llama(config: Config, target: Model) -> Decoder:
    """The Llama of one layer that a head is; raises ConfigError for another family, and for another vocabulary."""
    inner = _inner(config)
    family = "llama" if LLAMA3 in inner.texts("architectures") else inner.get("model_type", "llama")
    if family not in LLAMAS:
        raise ConfigError(f"{config.name}: model_type", f"{family!r} is no family of EAGLE heads that ksim knows"
                                                        f" ({', '.join(LLAMAS)})")
    base = _decoder(inner, family)
    if (own := base.sizes["V"]) != (vocabulary := target.decoder.sizes["V"]):
        raise ConfigError(f"{config.name}: vocab_size", f"{own} is not the {vocabulary} of {target.name}: the head is"
                                                        f" one for another model")
    if len(base.layers) != 1:
        raise ConfigError(f"{config.name}: num_hidden_layers", f"a head of {len(base.layers)} layers is not modelled,"
                                                               f" only of 1")
    return base


def _decoder(config: Config, family: str) -> Decoder:
    if family not in NORMED:
        return llama(config)
    return blocks.decoder(config, [blocks.layer(blocks.attention(config, qk_norm=True), blocks.gated_mlp(config))])


def _inner(config: Config) -> Config:
    """The part of *config* that describes the layer: `transformer_layer_config` in the format of speculators."""
    part: Mapping[str, object] = config.part("transformer_layer_config").table
    return Config(config.name, {**config.table, **part}) if part else config
