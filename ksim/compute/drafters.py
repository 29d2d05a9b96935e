"""Drafters: models that propose tokens for a target to verify, written as the target's architectures are.

A draft model is any model.  A head (EAGLE, EAGLE-3, or a module of the target's own checkpoint that predicts further
tokens, MTP) has a layer or a few of its own, reads the target's hidden states, and borrows what it shares with it.

EAGLE and EAGLE-3 are heads with checkpoints of their own, a Llama's layer each.  EAGLE (arXiv 2401.15077) projects the
embedding of a token and the target's last hidden state to one (vLLM 0.33,
model_executor/models/llama_eagle.py).  EAGLE-3 (arXiv 2503.01840) projects hidden states of three of the target's
layers to one, once a step, reads it beside the embedding, and may sample from a vocabulary of its own
(llama_eagle3.py).  Embeddings, and EAGLE's head, are the target's: checkpoints that have copies share them in vLLM.

An MTP module norms the embedding of a token and the hidden state before it, projects both to one, and goes through a
layer like the last of the target; embedding and head are the target's (vLLM 0.33, model_executor/models/*_mtp.py).

N-grams: the last tokens of each sequence are looked up in it, and the tokens that followed them are proposed.  vLLM
0.33 does so on the GPU, in two kernels without weights (v1/worker/gpu/spec_decode/ngram/speculator.py): one reads all
tokens of each sequence, the other takes the best match.

Rejection sampling decides which drafted tokens stand, and the token after them (vLLM 0.33, rejection_sampler_utils.py).
The target's own head has computed the logits of all rows, cast them to FP32 and gone through them once, which is where
its time goes.  Then come a kernel that walks along each sequence's drafts, one that goes through the logits at the
first token that does not stand, and one that writes the token that is sampled there.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeGuard

from attrs import evolve, frozen

from ksim.compute import blocks
from ksim.compute.architectures.llama import llama
from ksim.compute.graph import LayerCache, Op
from ksim.compute.kernels.basic import Pointwise
from ksim.compute.model import SPARSE, Config, Decoder, FurtherModel, Model
from ksim.compute.model_ops import communicate, op, pointwise
from ksim.compute.notation import Operation
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch, Contexts
from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Shard

if TYPE_CHECKING:
    from ksim.compute.latent import AttendSparse

__all__ = ["Borrowed", "Drafter", "EMBEDDING", "HIDDEN", "drafting", "projection", "reads_of", "sampling", "eagle",
           "eagle3", "drafter", "parameters", "with_modules", "ngrams", "verification"]


@frozen
class Borrowed:
    """An `operation` with weights of another model: it takes its time, and no memory."""

    operation: Operation

    @property
    def label(self) -> str:
        return self.operation.label

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        return self.operation.lower(sizes, shard)


@frozen
class Drafter:
    """Proposes tokens after each step of a target (vLLM 0.33, v1/worker/gpu/spec_decode).

    The `first` pass goes over all tokens of the step, and over `more` of each sequence; each `later` one over one token
    a sequence.  Memory holds so many `modules`; where they take `turns`, every pass goes over all tokens.  A drafter
    that is not `captured` runs without CUDA graphs.
    """

    first: FurtherModel
    later: FurtherModel
    modules: int = 1
    turns: bool = False
    more: int = 0
    captured: bool = True

    @property
    def name(self) -> str:
        return self.first.name

    def parameters(self) -> int:
        """Weights of its own; what it borrows is not counted."""
        return self.modules * self.first.parameters()

    def weights(self, shard: Shard) -> float:
        """Bytes of its own weights on one rank."""
        return self.modules * self.first.weights(shard)

    def cache_by_layer(self, shard: Shard) -> list[LayerCache]:
        """The caches of its layers on one rank."""
        return self.modules * self.first.cache_by_layer(shard)

    def cache_per_token(self, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        return self.modules * self.first.cache_per_token(shard)

    def first_pass(self, batch: Batch) -> Batch:
        """The batch of the first pass beside *batch*, which yields a token for each sequence."""
        if not self.more:
            return evolve(batch, drafts=0)
        chunks = tuple((new + self.more, context) for new, context in batch.chunks)
        return evolve(batch, chunks=chunks, width=batch.width + self.more, drafts=0,
                      tokens=batch.tokens + self.more * batch.sequences)

    def later_passes(self, batch: Batch, tokens: int) -> list[Batch]:
        """The batches of the passes after the first, where *tokens* are drafted.

        Sequences are taken to be as long as if all drafts before were accepted.
        """
        if self.turns:
            return [self.first_pass(batch)] * (tokens - 1)
        ends, width = batch.contexts, batch.width + self.more
        offsets = ends.offsets if not batch.chunks else ends.offsets.plus(
            [context + new + self.more - width - ends.shift for new, context in batch.chunks])
        samples = batch.sequences if batch.logits else 0
        return [Batch(Contexts(offsets, ends.shift + width + index), (), samples, batch.sequences)
                for index in range(tokens - 1)]


Operations = tuple[Operation, ...]

#: The target's embedding of each token.
EMBEDDING: Operations = tuple(map(Borrowed, blocks.embedding()))
#: The target's hidden states are copied to where the drafter's graphs read them.
HIDDEN = pointwise("copy", "tm->tm", "hidden_copy")


def projection(label: str, *, split: bool = False) -> Operations:
    """Project the inputs of a module (O) to the hidden size: on every rank, or *split* among ranks and gathered."""
    if split:
        return (op("tO,OM->tM", label, parallel="M", quantized=False),
                communicate("all_gather", "tM", f"{label}_gather"))
    return (op("tO,OM->tM", label, quantized=False),)


def reads_of(decoder: Mapping[str, int], hidden_states: int = 2) -> dict[str, int]:
    """The sizes of a projection that reads so many *hidden_states*, embeddings among them, for sizes of a *decoder*."""
    return {"O": hidden_states * decoder["m"], "M": decoder["m"]}


def sampling(*, own: bool = False, reduced: bool = False) -> Operations:
    """Logits of each sequence's last token by the target's head, or the drafter's *own*, and the best token.

    A *reduced* vocabulary (D) is spread over the whole one, whose other logits are minus infinity.
    """
    vocabulary = "D" if reduced else "V"
    head = op(f"sm,m{vocabulary}->s{vocabulary}", "lm_head", parallel=vocabulary, quantized=False)
    spread = (pointwise("copy", "sD->sV", "spread"),) if reduced else ()
    return (head if own else Borrowed(head), communicate("all_gather", f"s{vocabulary}", "logits_gather"), *spread,
            pointwise("argmax", "sV->s", "sample"))


def drafting(like: Decoder, sizes: Mapping[str, int], takes: Operations, layer: Operations,
             head: Operations) -> Decoder:
    """A drafter of one *layer* with the formats and lengths of a decoder *like* it.

    It *takes* embedding and hidden states in; its *head* begins with what goes over all tokens, and samples.
    """
    return Decoder(
        sizes=sizes, embedding=takes, layers=(layer,), head=head, max_length=like.max_length, top_k=like.top_k,
        quantization=like.quantization, unquantized=like.unquantized, kv_cache_dtype=like.kv_cache_dtype)


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
    """The modules of the families that ksim knows."""
    family = config.get("model_type", "")
    key = (WHOLE | SPLIT).get(family, "")
    text = config.part("text_config") if config.value("text_config") else config
    count = text.need(key, 1) if family in ALWAYS else text.count(key) if key else 0
    layer = chain(*_layers(text, target, family)) if count else ()
    return ((*NORMS, *projection("eh_proj", split=family in SPLIT), *layer),) * count


def _layers(config: Config, target: Decoder, family: str) -> list[Operations]:
    """The layers of a module: one like the last of *target*, or the first; or one of each kind of a pattern."""
    own_kinds = [*config.get("mtp_hybrid_override_pattern", "")] or config.texts("mtp_layers_block_type")
    if family not in PATTERNS or not own_kinds:
        return [tuple(target.layers[0] if family in DENSE else _last(target))]
    kinds = [*config.get("hybrid_override_pattern", "")] or config.texts("layers_block_type")
    if strangers := [kind for kind in own_kinds if kind not in kinds]:
        raise ConfigError(f"{config.name}: mtp_hybrid_override_pattern", f"{strangers[0]!r} is no layer of the model")
    last = {kind: tuple(layer) for kind, layer in zip(kinds, target.layers, strict=True)}
    return [last[kind] for kind in own_kinds]


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
                if all(op.own for op in layer if _attends_sparsely(op)))


def _without_indexer(module: Sequence[Operation]) -> Operations:
    """*module* where it attends to keys that were chosen before, and an indexer has nothing to do."""
    return tuple(evolve(op, own=False) if _attends_sparsely(op) else op for op in module
                 if not op.label.startswith("index_"))


def _attends_sparsely(operation: object) -> "TypeGuard[AttendSparse]":
    return getattr(operation, "attends", "") == SPARSE


def parameters(target: Model) -> int:
    """Weights of the target's modules, without the copies of its embedding and head that checkpoints may have."""
    return drafter(target, 1).parameters() if target.decoder.mtp else 0


#: Bytes of a token's id, and of the best match in a block of so many tokens.
ID, MATCH, BLOCK = 4, 8, 1024


@frozen
class _Scan:
    """The kernel that reads the ids of all tokens of a batch's sequences."""

    def over(self, batch: Batch) -> Pointwise | None:
        tokens = batch.tokens + batch.contexts.total + sum(context for _, context in batch.chunks)
        blocks = batch.sequences + tokens // BLOCK
        return Pointwise("ngram", float(ID * tokens), float(MATCH * blocks), float(tokens), blocks) if tokens else None


@frozen
class Scan:
    """Reads the ids of all tokens of every sequence."""

    label: str = "scan"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        yield Op(self.label, _Scan())


def ngrams(target: Decoder) -> Decoder:
    """The pass that looks up n-grams beside *target*; all ranks do the same."""
    best = pointwise("ngram", "s->s", "best_match", reads="fp32", writes="fp32")
    return Decoder(target.sizes, (), (), (Scan(), best), target.max_length)


KERNELS = (pointwise("rejection", "s->s", "walk", reads="fp32", writes="fp32"),
           pointwise("argmax", "sV->s", "resample", reads="fp32", writes="fp32"),
           pointwise("rejection", "s->s", "insert", reads="fp32", writes="fp32"))


def verification(target: Decoder) -> Decoder:
    """The pass after a step of *target* that verifies drafts; all ranks do the same."""
    return Decoder(target.sizes, (), (), KERNELS, target.max_length, sampled=0)
