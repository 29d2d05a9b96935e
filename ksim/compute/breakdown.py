"""What a model is made of: parameters and weights by part, caches by kind of attention, and how it attends."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from attrs import frozen

from ksim.compute.latent import AttendBlocks, AttendCompressed, AttendLatent, AttendSparse, Keep
from ksim.compute.model import Model
from ksim.compute.notation import Cached, Operation, Stateful, Weighted
from ksim.compute.notation.attention import FusedAttention
from ksim.compute.notation.pointwise import Elementwise, Lookup
from ksim.compute.notation.product import Product
from ksim.compute.recurrent import (
    AttendLightning,
    AttendLinear,
    AttendMamba,
    AttendMamba2,
    Convolve,
    ShortConvolution,
)
from ksim.compute.sizes import Sizes
from ksim.specs.shard import Shard

__all__ = ["AttentionKind", "ModelPart", "attention_kinds", "model_parts", "attends_sparsely", "keeps_states"]

#: In the order of a forward pass.
ORDER = ("embedding", "attention", "mlp", "router", "experts", "shared_experts", "norms", "head", "other")
#: Products that no `part` of a quantization covers, by their labels.
LABELS = {"router": "router", "lm_head": "head", "ba": "attention", "index_k": "attention",
          "shared_gate": "shared_experts", "router_correction": "router", "expert_scale": "router",
          "compress_in": "attention", "index_compress_in": "attention", "index_weights": "attention",
          "compress_positions": "attention", "index_compress_positions": "attention"}


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


def model_parts(model: Model, shard: Shard) -> list[ModelPart]:
    """The parts of *model* that have parameters; weights in the formats of *shard*, whose parallelism is not looked at.

    A head tied to the embedding has none of its own.
    """
    decoder, whole = model.decoder, Shard(precision=shard.precision)
    sizes = Sizes(decoder.sizes)
    chosen = Sizes({**decoder.sizes, "E": decoder.top_k}) if decoder.top_k else sizes
    total, active, weights = Counter[str](), Counter[str](), defaultdict[str, float](float)
    for operation in _operations(model):
        if isinstance(operation, Weighted):
            name = _part(operation)
            total[name] += operation.parameters(sizes)
            active[name] += operation.parameters(chosen if getattr(operation, "routed", "") else sizes)
            weights[name] += operation.weights(sizes, whole)
    return [ModelPart(name, total[name], active[name], weights[name]) for name in ORDER if total[name]]


def attention_kinds(model: Model, shard: Shard) -> list[AttentionKind]:
    """How the layers of *model* attend, on one rank of *shard*."""
    sizes, kinds = Sizes(model.decoder.sizes), dict[str, list[tuple[float, float]]]()
    for layer in model.decoder.layers:
        for operation in layer:
            if name := _attention_kind(operation):
                token = operation.cache_per_token(sizes, shard) if isinstance(operation, Cached) else 0.0
                state = operation.state_per_sequence(sizes, shard) if isinstance(operation, Stateful) else 0.0
                kinds.setdefault(name, []).append((token, state))
    return [AttentionKind(name, len(layers), sum(token for token, _ in layers), sum(state for _, state in layers))
            for name, layers in kinds.items()]


def _operations(model: Model) -> Iterator[Operation]:
    """Those with weights of their own."""
    decoder = model.decoder
    yield from decoder.embedding
    for layer in decoder.layers:
        yield from layer
    yield from (operation for operation in decoder.head if not (decoder.tied and _part(operation) == "head"))


def _part(operation: Operation) -> str:
    if isinstance(operation, Lookup):
        return "embedding"
    if isinstance(operation, Elementwise):
        return "norms"
    if _attention_kind(operation) or isinstance(operation, Convolve | AttendCompressed):
        return "attention"
    part = operation.part.removesuffix("_inputs") if isinstance(operation, Product) else ""
    return part or LABELS.get(operation.label, "other")


def _attention_kind(operation: Operation) -> str:
    """How *operation* attends, or "" if it does not."""
    if isinstance(operation, FusedAttention):
        kind = "chunks" if operation.chunked else "sliding window"
        return f"{kind} of {operation.window}" if operation.window else "full attention"
    names = {AttendLatent: "latent attention", AttendSparse: "sparse latent attention",
             AttendLinear: "linear attention", AttendMamba: "Mamba", AttendMamba2: "Mamba-2",
             AttendLightning: "lightning attention",
             ShortConvolution: "short convolution", AttendBlocks: "attention to blocks"}
    if isinstance(operation, Keep):
        kept = f"{operation.label.removesuffix('_write').replace('_', ' ')}"
        return f"{kept} of the last {operation.window}" if operation.window else kept
    return names.get(type(operation), "")


def attends_sparsely(model: Model) -> bool:
    """Whether any layer of *model* attends to blocks of keys, or to compressed ones."""
    return any(isinstance(operation, AttendBlocks | AttendCompressed) for layer in model.decoder.layers
               for operation in layer)


def attends_latently(model: Model) -> bool:
    """Whether any layer of *model* attends to latent vectors."""
    return any(isinstance(operation, AttendLatent) for layer in model.decoder.layers for operation in layer)


def keeps_states(model: Model) -> bool:
    """Whether any layer of *model* keeps the state of a Mamba layer, or of lightning attention."""
    kinds = (AttendMamba, AttendMamba2, AttendLightning)
    return any(isinstance(operation, kinds) for layer in {*model.decoder.layers} for operation in layer)
