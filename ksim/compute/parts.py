"""A model's parameters, weights and caches by part: what its size is made of."""

from collections import Counter
from collections.abc import Iterator

from attrs import frozen

from ksim.compute.einsum import Attend, Einsum, Gather, Map, Operation
from ksim.compute.kept import Cached, Stateful
from ksim.compute.latent import AttendLatent, AttendSparse
from ksim.compute.linear import AttendLinear
from ksim.compute.model import Model
from ksim.compute.sizes import Sizes
from ksim.specs.deployment import Shard

__all__ = ["Kind", "Part", "kinds", "parts"]

#: In the order of a forward pass.
ORDER = ("embedding", "attention", "mlp", "router", "experts", "shared_experts", "norms", "head", "other")
#: Products that no `part` of a quantization covers, by their labels.
LABELS = {"router": "router", "lm_head": "head", "ba": "attention", "index_k": "attention",
          "shared_gate": "shared_experts"}


@frozen
class Part:
    """One part's parameters, those that meet each token, and the bytes of its weights over all ranks."""

    name: str
    parameters: int
    active: int
    bytes: float


@frozen
class Kind:
    """Layers that attend alike: how many, bytes of KV cache a token, and of state a sequence, over all of them."""

    name: str
    layers: int
    bytes_per_token: float
    bytes_per_sequence: float


def parts(model: Model, shard: Shard) -> list[Part]:
    """The parts of *model* that have parameters; weights in the formats of *shard*, whose parallelism is not looked at.

    A head tied to the embedding has none of its own.
    """
    decoder, whole = model.decoder, Shard(precision=shard.precision)
    sizes = Sizes(decoder.sizes)
    chosen = Sizes({**decoder.sizes, "E": decoder.top_k}) if decoder.top_k else sizes
    total, active, weights = Counter[str](), Counter[str](), dict[str, float]()
    for op in _operations(model):
        name = _part(op)
        total[name] += op.parameters(sizes)
        active[name] += op.parameters(chosen if getattr(op, "routed", "") else sizes)
        weights[name] = weights.get(name, 0.0) + op.weights(sizes, whole)
    return [Part(name, total[name], active[name], weights[name]) for name in ORDER if total[name]]


def kinds(model: Model, shard: Shard) -> list[Kind]:
    """How the layers of *model* attend, on one rank of *shard*."""
    sizes, found = Sizes(model.decoder.sizes), dict[str, list[tuple[float, float]]]()
    for layer in model.decoder.layers:
        for op in layer:
            if name := _attends(op):
                token = op.cache_per_token(sizes, shard) if isinstance(op, Cached) else 0.0
                state = op.state_per_sequence(sizes, shard) if isinstance(op, Stateful) else 0.0
                found.setdefault(name, []).append((token, state))
    return [Kind(name, len(each), sum(token for token, _ in each), sum(state for _, state in each))
            for name, each in found.items()]


def _operations(model: Model) -> Iterator[Operation]:
    """Those with weights of their own."""
    decoder = model.decoder
    yield from decoder.embedding
    for layer in decoder.layers:
        yield from layer
    yield from (op for op in decoder.head if not (decoder.tied and _part(op) == "head"))


def _part(op: Operation) -> str:
    if isinstance(op, Gather):
        return "embedding"
    if isinstance(op, Map):
        return "norms"
    if _attends(op):
        return "attention"
    return op.part or LABELS.get(op.label, "other") if isinstance(op, Einsum) else "other"


def _attends(op: Operation) -> str:
    """How *op* attends, or "" if it does not."""
    if isinstance(op, Attend):
        return f"sliding window of {op.window}" if op.window else "full attention"
    if isinstance(op, AttendLinear):
        return "linear attention"
    names = {AttendLatent: "latent attention", AttendSparse: "sparse latent attention"}
    return names.get(type(op), "")
