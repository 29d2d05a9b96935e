"""A whole model: its operations, its size in memory, and the kernels that one rank launches for a step.

A `FurtherModel` runs beside the model that is served: a drafter, a vision encoder, or what finds the log-probabilities
of a prompt's tokens (vLLM 0.33, v1/worker/gpu/sample/prompt_logprob.py and logprob.py).  For these, the target's head
computes logits of all tokens of the step, in chunks of 1,024 rows.  For each chunk, torch.topk finds the likeliest
tokens: it counts two digits of the 16-bit numbers and gathers, which reads the logits three times.  One kernel goes
through each row twice for its log-softmax, and another one once for the rank of the prompt's token.  What these write
is too little to count.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from attrs import evolve, field, frozen

from ksim.compute.config import Config
from ksim.compute.graph import BatchDependent, Block, Collective, KernelGraph, LayerCache, Op, fold
from ksim.compute.model_ops import pointwise
from ksim.compute.notation import Cached, Operation, Stateful, Weighted, cached, layer_cache, stateful, weighted
from ksim.compute.notation.communicate import Communicate, Send
from ksim.compute.notation.product import Product
from ksim.compute.sizes import MeanExpertRows, Sizes
from ksim.foundation.units import DType
from ksim.specs.shard import Routing, Shard

if TYPE_CHECKING:
    from ksim.compute.vision import Processor

__all__ = ["HAND_ON", "TAKE_OVER", "Config", "Decoder", "Model", "FurtherModel", "ROWS", "prompt_logprobs",
           "whole_attention", "routed", "AttentionKind", "ModelPart", "LATENT", "SPARSE"]

#: How operations attend (their `attends`): over latent vectors, all or some, and in layers that keep a state.
LATENT, SPARSE = "latent attention", "sparse latent attention"
RECURRENT = frozenset({"Mamba", "Mamba-2", "lightning attention"})

#: A pipeline stage sends the hidden state and, since norms are fused with the addition, the residual: each of its ranks
#: sends a slice to its peer, and the ranks of the next stage gather the slices, as in vLLM.
HAND_ON = (Send("tm", "send_hidden"), Send("tm", "send_residual"))
TAKE_OVER = tuple(Communicate("all_gather", "tm", label=label) for label in ("gather_hidden", "gather_residual"))


@frozen
class Decoder:
    """The operations of a model, and the sizes of their indices, as an architecture file makes them of a config.

    `layers` has one entry a layer.  Operations of the `head` run over all tokens, from number `sampled` on over the
    last token of each sequence.  A `tied` model uses the embedding's weights in its head.  Each token goes to `top_k`
    experts, if there are any; `groups` says into how many groups of neighbours they are divided, and in how many of
    these a token's are.  `quantization` is the checkpoint's, by the engine's name for it, but for its `unquantized`
    parts; `kv_cache_dtype` likewise.  An `encoder` makes tokens of the patches that its `images` are cut into.  `mtp`
    are the modules of the checkpoint that predict further tokens: only speculation loads them, and they count nowhere
    else; if they share indices, passes after the first attend to the keys that it has chosen.  `inputs` come first on
    every pipeline stage.
    """

    sizes: Mapping[str, int]
    embedding: Sequence[Operation]
    layers: Sequence[Sequence[Operation]]
    head: Sequence[Operation]
    max_length: int
    tied: bool = False
    top_k: int = 0
    groups: tuple[int, int] = (1, 1)
    quantization: str = "none"
    unquantized: tuple[str, ...] = ()
    kv_cache_dtype: str = "auto"
    sampled: int = 1
    encoder: "Decoder | None" = None
    images: "Processor | None" = None
    mtp: Sequence[Sequence[Operation]] = ()
    mtp_shares_indices: bool = False
    inputs: Sequence[Operation] = ()


@frozen
class ModelPart:
    """One part's parameters, those that meet each token, and the bytes of its weights over all ranks."""

    name: str
    parameters: int
    active: int
    bytes: float


@frozen
class AttentionKind:
    """Layers that attend alike: how many, bytes of KV cache a token, and of state a sequence, over all of them."""

    name: str
    layers: int
    bytes_per_token: float
    bytes_per_sequence: float


#: The parts of a model, in the order of a forward pass.
PARTS = ("embedding", "attention", "mlp", "router", "experts", "shared_experts", "norms", "head", "other")
#: The part of a product whose `part` does not say it, by its label.
PART_OF_LABEL = {
    "router": "router", "lm_head": "head", "ba": "attention", "index_k": "attention", "shared_gate": "shared_experts",
    "router_correction": "router", "expert_scale": "router", "compress_in": "attention",
    "index_compress_in": "attention", "index_weights": "attention", "compress_positions": "attention",
    "index_compress_positions": "attention"}


def _part(operation: Operation) -> str:
    if getattr(operation, "attends", ""):
        return "attention"
    return getattr(operation, "part", "").removesuffix("_inputs") or PART_OF_LABEL.get(operation.label, "other")


@frozen
class Model:
    """A decoder-only transformer; `architecture` is the class that its config.json names, if it names one."""

    name: str
    decoder: Decoder = field(repr=False)
    architecture: str = ""
    _outlines: dict[Shard, Sequence[tuple[Sequence["Stretch"], int]]] = field(factory=dict, init=False, eq=False,
                                                                             repr=False)

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens that the model was made for."""
        return self.decoder.max_length

    @property
    def layers(self) -> int:
        return len(self.decoder.layers)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the indices over the whole model."""
        return Sizes(self.decoder.sizes)

    def parameters(self) -> int:
        """The number of weights; tied ones count once."""
        sizes, decoder = self.sizes, self.decoder
        total = sum(op.parameters(sizes) for op in weighted(chain(decoder.embedding, decoder.head)))
        total += sum(repeat * sum(op.parameters(sizes) for op in weighted(layer)) for layer, repeat in self._repeated())
        return total - decoder.tied * sizes.volume("mV")

    def active_parameters(self) -> int:
        """The number of weights that each token meets; fewer than all where there are experts."""
        sizes = self.decoder.sizes
        active = Sizes({**sizes, "E": self.decoder.top_k}) if self.decoder.top_k else Sizes(sizes)
        idle = sum(repeat * (op.parameters(Sizes(sizes)) - op.parameters(active)) for layer, repeat in self._repeated()
                   for op in layer if isinstance(op, Product) and op.routed)
        return self.parameters() - idle

    def parts(self, shard: Shard) -> list[ModelPart]:
        """The parts that have parameters; weights in the formats of *shard*, whose parallelism does not matter.

        A head tied to the embedding has none of its own.
        """
        decoder, whole = self.decoder, Shard(precision=shard.precision)
        sizes = self.sizes
        chosen = Sizes({**decoder.sizes, "E": decoder.top_k}) if decoder.top_k else sizes
        total, active, weights = Counter[str](), Counter[str](), defaultdict[str, float](float)
        head = (op for op in decoder.head if not (decoder.tied and _part(op) == "head"))
        for op in chain(decoder.embedding, *decoder.layers, head):
            if isinstance(op, Weighted):
                name = _part(op)
                total[name] += op.parameters(sizes)
                active[name] += op.parameters(chosen if getattr(op, "routed", "") else sizes)
                weights[name] += op.weights(sizes, whole)
        return [ModelPart(name, total[name], active[name], weights[name]) for name in PARTS if total[name]]

    def attention_kinds(self, shard: Shard) -> list[AttentionKind]:
        """The kinds of attention of the layers, on one rank of *shard*."""
        sizes, kinds = self.sizes, dict[str, list[tuple[float, float]]]()
        for op in chain.from_iterable(self.decoder.layers):
            if name := getattr(op, "attends", ""):
                token = op.cache_per_token(sizes, shard) if isinstance(op, Cached) else 0.0
                state = op.state_per_sequence(sizes, shard) if isinstance(op, Stateful) else 0.0
                kinds.setdefault(name, []).append((token, state))
        return [AttentionKind(name, len(layers), sum(token for token, _ in layers), sum(state for _, state in layers))
                for name, layers in kinds.items()]

    @property
    def attends_latently(self) -> bool:
        """Whether any layer attends to latent vectors, and to all of them."""
        return any(getattr(op, "attends", "") == LATENT for op in self._operations())

    @property
    def keeps_latents(self) -> bool:
        """Whether any layer attends to latent vectors, to all or to some of them."""
        return any(getattr(op, "attends", "") in (LATENT, SPARSE) for op in self._operations())

    @property
    def attends_by_block(self) -> bool:
        """Whether any layer attends to blocks of keys, or to compressed ones."""
        return any(hasattr(op, "by_block") for op in self._operations())

    @property
    def keeps_states(self) -> bool:
        """Whether any layer keeps the state of a Mamba layer, or of lightning attention."""
        return any(getattr(op, "attends", "") in RECURRENT for op in self._operations())

    def _operations(self) -> Iterator[Operation]:
        """The operations of each different layer."""
        return chain.from_iterable(layer for layer, _ in self._repeated())

    def _repeated(self) -> Iterator[tuple[Sequence[Operation], int]]:
        """Each layer object, and how often the model has it."""
        layers = {id(layer): layer for layer in self.decoder.layers}
        repeats = Counter(map(id, self.decoder.layers))
        return ((layer, repeats[key]) for key, layer in layers.items())

    def weights(self, shard: Shard) -> float:
        """Bytes of weights on one rank."""
        sizes = self.sizes
        total = self._sum(lambda ops: sum(op.weights(sizes, shard) for op in weighted(ops)), shard)
        if self.decoder.tied and shard.first and shard.last:
            total -= sizes.split("V", shard.tensor).volume("mV") * DType.BF16.bytes
        return total

    def cache_per_token(self, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        sizes = self.sizes
        return self._sum(lambda ops: sum(op.cache_per_token(sizes, shard) for op in cached(ops)), shard)

    def cache_by_layer(self, shard: Shard) -> list[LayerCache]:
        """The cache of each layer of one rank's stage, in order; a layer with attention and a state has two entries."""
        sizes = self.sizes
        layers = [self.decoder.layers[place] for place in shard.share(self.layers)]
        known = {id(layer): [kept for op in layer if (kept := layer_cache(op, sizes, shard)) is not None]
                 for layer in {id(layer): layer for layer in layers}.values()}  # most are alike
        return [kept for layer in layers for kept in known[id(layer)]]

    def state_per_sequence(self, shard: Shard) -> float:
        """Bytes of one sequence on one rank beside its KV cache, such as the state of linear attention."""
        sizes = self.sizes
        return self._sum(lambda ops: sum(op.state_per_sequence(sizes, shard) for op in stateful(ops)), shard)

    def _sum(self, part: Callable[[Sequence[Operation]], float], shard: Shard) -> float:
        """The sum of *part* over the layers and ends of the pipeline stage that *shard* is of."""
        decoder = self.decoder
        layers = [decoder.layers[place] for place in shard.share(self.layers)]
        known = {id(layer): part(layer) for layer in {id(layer): layer for layer in layers}.values()}  # most are alike
        ends = (*(decoder.embedding if shard.first else ()), *(decoder.head if shard.last else ()))
        return sum(known[id(layer)] for layer in layers) + part(ends)

    def graph(self, tokens: int, samples: int, shard: Shard, everywhere: int | None = None) -> KernelGraph:
        """The launches of one rank for a step of *tokens* tokens, with logits for *samples* sequences.

        These are all sequences: vLLM computes logits for partial prompts too, and drops the samples.  *everywhere* is
        the number of tokens on all data ranks together, by default as many on each.
        """
        *blocks, last = self.body(tokens, shard, everywhere)
        return KernelGraph((*blocks, Block((*last.ops, *self.sampled(samples, shard)))))

    def body(self, tokens: int, shard: Shard, everywhere: int | None = None,
             own: Sequence[Block | None] = ()) -> list[Block]:
        """The launches over all tokens; the last block is the head's, up to where its rows are sequences.

        Those of the stretches over a rank's *own* tokens are given where they are known, as the method of that name has
        them.
        """
        sizes, known = self._sizes_of(tokens), iter(own)
        everywhere = tokens * shard.data if everywhere is None else everywhere
        sizes = Sizes({**sizes.of, "T": everywhere})
        return [Block(tuple(chain.from_iterable(
            block.ops if stretch.own and (block := next(known, None)) else self._launches(stretch, sizes, shard)
            for stretch in stretches)), repeat) for stretches, repeat in self._outline(shard)]

    def own(self, tokens: int, shard: Shard) -> list[Block]:
        """The launches of a mixture that depend on a rank's own tokens alone: a block for each stretch of them."""
        sizes = self._sizes_of(tokens)
        return [Block(self._launches(stretch, sizes, shard)) for stretches, _ in self._outline(shard)
                for stretch in stretches if stretch.own]

    def _sizes_of(self, tokens: int) -> Sizes:
        """The sizes of a step, without what depends on where tokens are sent."""
        step = {"t": tokens, "top_k": self.decoder.top_k, "groups": self.decoder.groups[0],
                "chosen": self.decoder.groups[1]}
        return Sizes({**self.decoder.sizes, **step}, UNKNOWN)

    def _outline(self, shard: Shard) -> Sequence[tuple[Sequence["Stretch"], int]]:
        """The stretches of each block of the body, and how often it repeats."""
        if shard not in self._outlines:
            decoder = self.decoder
            held = [(decoder.layers[i], shard.routing.at(i)) for i in shard.share(self.layers)]
            first = (*decoder.inputs, *(decoder.embedding if shard.first else TAKE_OVER))
            last = decoder.head[:decoder.sampled] if shard.last else HAND_ON
            blocks = [([stretch for layer, routing in layers for stretch in self._stretches(layer, shard, routing)],
                       repeat) for layers, repeat in fold(held)]
            self._outlines[shard] = [([*self._stretches(first, shard)], 1), *blocks,
                                     ([*self._stretches(last, shard)], 1)]
        return self._outlines[shard]

    def _stretches(self, operations: Sequence[Operation], shard: Shard,
                   routing: Routing | None = None) -> Iterator["Stretch"]:
        """The stretches of a layer with *routing*, or of what stands before or behind layers."""
        if not self.decoder.top_k:
            yield Stretch(tuple(operations))
            return
        for own, group in groupby(operations, key=lambda operation: self._is_own(operation, shard)):
            yield Stretch(tuple(group), own, None if own else routing)

    def _is_own(self, operation: Operation, shard: Shard) -> bool:
        """Whether the launches of *operation* do not depend on where tokens are sent: it does not ask."""
        try:
            for tokens in TRIED:
                for op in operation.lower(self._sizes_of(tokens), shard):
                    hash(op)
        except LookupError:
            return False
        return True

    def _launches(self, stretch: "Stretch", sizes: Sizes, shard: Shard) -> tuple[Op, ...]:
        """The launches of *stretch*."""
        if stretch.routing is None:
            return _lower(stretch.operations, sizes, shard)
        return _mixed(stretch.operations, sizes, shard, stretch.routing)

    def sampled(self, samples: int, shard: Shard) -> tuple[Op, ...]:
        """The launches of the head whose rows are *samples* sequences."""
        decoder = self.decoder
        sizes = Sizes({**decoder.sizes, "s": samples})
        return _lower(decoder.head[decoder.sampled:], sizes, shard) if shard.last else ()


@frozen
class Stretch:
    """Operations that follow each other: those of a mixture that depend on a rank's `own` tokens alone, those of its
    layers that do not, with their `routing`, or any others."""

    operations: tuple[Operation, ...]
    own: bool = False
    routing: Routing | None = None


#: Numbers of tokens for which it is tried whether an operation depends on where tokens are sent.
TRIED = (1, 7, 1009, 30011)


class _Unknown(tuple[tuple[int, float], ...]):
    """The rows of experts where nobody may ask for them."""

    def _refuse(self, *_: object) -> NoReturn:
        raise LookupError("the rows of experts are not known")

    __iter__ = __len__ = __getitem__ = __hash__ = __eq__ = __contains__ = __bool__ = _refuse


UNKNOWN = _Unknown()


def _mixed(layer: Sequence[Operation], sizes: Sizes, shard: Shard, routing: Routing) -> tuple[Op, ...]:
    """The launches of a mixture on the rank with most token-expert pairs, and as `mean` those of the average rank."""
    from ksim.compute.expert_rows import Mixture, average_rank, fullest_rank  # for mixtures of experts alone

    mixture = Mixture(sizes.of["top_k"], sizes.of["E"], routing, shard.expert_groups, shard.placement)
    full = _lower(layer, routed(sizes, fullest_rank(sizes.of["T"], mixture)), shard)
    if mixture.ranks == 1:
        return full
    mean = _lower(layer, routed(sizes, average_rank(sizes.of["T"], mixture)), shard)
    return tuple(_at_mean(op, other) for op, other in zip(full, mean, strict=True))


def routed(sizes: Sizes, expert_rows: MeanExpertRows) -> Sizes:
    """*sizes* with *expert_rows*, and with x, the number of pairs, rounded."""
    pairs = round(sum(rows * experts for rows, experts in expert_rows))
    return Sizes({**sizes.of, "x": max(pairs, 1) if expert_rows else 0}, expert_rows)


def _at_mean(op: Op, mean: Op) -> Op:
    """*op* with the kernel of *mean*, if that is another."""
    kernel = mean.kernel
    return op if kernel == op.kernel or isinstance(kernel, BatchDependent | Collective) else evolve(op, mean=kernel)


def _lower(operations: Sequence[Operation], sizes: Sizes, shard: Shard) -> tuple[Op, ...]:
    return tuple(launch for operation in operations for launch in operation.lower(sizes, shard))


@frozen
class FurtherModel(Model):
    """A model whose launches have `prefix` before their labels, such as "draft.", to tell them from the target's."""

    prefix: str = field(kw_only=True)

    def _launches(self, stretch: Stretch, sizes: Sizes, shard: Shard) -> tuple[Op, ...]:
        return self._labelled(super()._launches(stretch, sizes, shard))

    def sampled(self, samples: int, shard: Shard) -> tuple[Op, ...]:
        return self._labelled(super().sampled(samples, shard))

    def _labelled(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(evolve(op, label=self.prefix + op.label) for op in ops)


#: Rows of a chunk: vLLM's CHUNK_SIZE.
ROWS = 1024

TOP = pointwise("argmax", "sV,sV,sV->s", "top_tokens")
SCORES = (pointwise("argmax", "sV,sV->s", "log_softmax", writes="fp32"), pointwise("argmax", "sV->s", "ranks"))


def prompt_logprobs(target: Decoder, top: bool) -> Decoder:
    """The pass beside *target* for a chunk of rows; it looks for the likeliest tokens only if asked to (*top*)."""
    logits = takewhile(lambda op: _label(op) != "logits_cast", target.head[target.sampled:])
    return Decoder(target.sizes, (), (), (*logits, *((TOP,) if top else ()), *SCORES), target.max_length, sampled=0,
                   quantization=target.quantization, unquantized=target.unquantized)


def _label(operation: Any) -> str:
    return str(getattr(operation, "label", ""))


def whole_attention(encoder: Decoder) -> Decoder:
    """*encoder* with all heads on each rank, so that ranks exchange nothing in attention and share the MLPs alone."""
    whole = {layer: tuple(_whole(operation) for operation in layer if not isinstance(operation, Communicate))
             for layer in map(tuple, encoder.layers)}
    return evolve(encoder, layers=tuple(whole[tuple(layer)] for layer in encoder.layers))


def _whole(operation: Any) -> Any:
    return evolve(operation, parallel=()) if "K" in dict(getattr(operation, "parallel", ())) else operation
