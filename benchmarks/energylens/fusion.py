"""What fusion saves: a layer of Llama 3 70B with its products and small kernels apart, and with them in one."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from attrs import frozen

from benchmarks.energylens.survey import BATCHES, LENGTHS, Phases
from ksim.compute.notation.attention import attend
from ksim.compute.notation.pointwise import pointwise
from ksim.compute.notation.product import op
from ksim.compute.notation.splits import LayerOperation
from ksim.simulation.layer import Layer

#: By the indices of docs/einsum.md.
SIZES: Mapping[str, int] = {"m": 8192, "K": 8, "r": 8, "i": 10, "h": 128, "F": 28672, "g": 2}


@frozen
class Saving:
    """The share of a layer's energy that fusion saves with a batch of so many sequences of a length."""

    batch: int
    length: int
    share: float


def _norm(label: str, fused: bool) -> list[LayerOperation]:
    """The addition of the residual, and the norm after it."""
    if fused:
        return [pointwise("fused_add_rms_norm", "bsm,bsm->bsm,bsm", scale="m", label=label)]
    return [pointwise("add", "bsm,bsm->bsm", label=f"{label}_add"),
            pointwise("rms_norm", "bsm->bsm", scale="m", label=label)]


def _projections(fused: bool) -> list[LayerOperation]:
    """Queries, keys and values."""
    if fused:
        return [op("bsm,miKh->bsiKh", parallel="K", label="qkv")]
    return [op("bsm,mKrh->bsKrh", parallel="K", label="q"), op("bsm,mKh->bsKh", parallel="K", label="k"),
            op("bsm,mKh->bsKh", parallel="K", label="v")]


def _gate(fused: bool) -> list[LayerOperation]:
    """Gate and up, and what makes one of both."""
    if fused:
        return [op("bsm,mgF->bsgF", parallel="F", label="gate_up"),
                pointwise("silu_mul", "bsgF->bsF", parallel="F", label="act")]
    return [op("bsm,mF->bsF", parallel="F", label="gate"), op("bsm,mF->bsF", parallel="F", label="up"),
            pointwise("silu", "bsF->bsF", parallel="F"), pointwise("mul", "bsF,bsF->bsF", parallel="F")]


def operations(fused: bool) -> list[LayerOperation]:
    """One layer; attention is one kernel either way."""
    return [
        *_norm("attention_norm", fused), *_projections(fused),
        pointwise("rope", "bsKrh,bsKh->bsKrh,bsKh", parallel="K"),
        pointwise("kv_write", "bsKh,bsKh->bsKh,bsKh", parallel="K"),
        attend("bKrsh,bKzh,bKzh->bKrsh", parallel="K"),
        op("bsKrh,Krhm->bsm", parallel="K", label="o_proj"),
        *_norm("mlp_norm", fused), *_gate(fused),
        op("bsF,Fm->bsm", parallel="F", label="down"),
    ]


def savings(phase: str, tensor: int = 8, batches: Sequence[int] = BATCHES,
            lengths: Sequence[int] = LENGTHS) -> Iterator[Saving]:
    """What each batch of *phase* saves on *tensor* A100, by batch and length."""
    layers = [Layer(operations(fused), SIZES, "fused" if fused else "apart") for fused in (False, True)]
    for batch in batches:
        for length in lengths:
            sizes = {"b": batch, "s": length if phase == "prefill" else 1, "z": length}
            apart, fused = (layer.with_sizes(**sizes).on("a100-80g", tensor=tensor).joules for layer in layers)
            yield Saving(batch, length, 1.0 - fused / apart)


def average(tensor: int = 8, batches: Sequence[int] = BATCHES, lengths: Sequence[int] = LENGTHS) -> Phases:
    """What fusion saves on the mean over batches and lengths."""
    return Phases(*(mean(saving.share for saving in savings(phase, tensor, batches, lengths))
                    for phase in ("prefill", "decode")))
