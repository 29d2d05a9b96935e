"""Two techniques to save energy: to overlap products with their all-reduces, and to fuse kernels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from attrs import frozen

from benchmarks.energylens.batches import BATCHES, LENGTHS, TENSORS, BatchPoint, Bench, Phases, front
from ksim.compute.notation.attention import attend
from ksim.compute.notation.communicate import LayerOperation
from ksim.compute.notation.pointwise import pointwise
from ksim.compute.notation.product import op
from ksim.scenario.layer import Layer

#: The paper's ways to overlap, by name: none, or four stages as in Megatron-LM on so many SMs.
NONE, MOST = "no overlap", "16 SMs"
WAYS: Mapping[str, Mapping[str, Any]] = {
    NONE: {}, **{f"{sms} SM{'s' * (sms > 1)}": {"overlap_stages": 4, "overlap_sms": sms} for sms in (1, 4, 16)}}
OVERLAP_BATCHES = (1, 2, 4, 8, 16)


@frozen
class Overlaps:
    """Prompts, priced with every way to overlap."""

    points: tuple[BatchPoint, ...]

    @classmethod
    def of(cls, model: str, tensors: Sequence[int] = TENSORS, batches: Sequence[int] = OVERLAP_BATCHES,
           length: int = 4096) -> "Overlaps":
        """Price all prompts that fit in memory; raises KsimError."""
        return cls(tuple(point for tensor in tensors for way, serve in WAYS.items()
                         for point in Bench.of(model, tensor, way, **serve).prefills(batches, [length])))

    @property
    def front(self) -> list[BatchPoint]:
        """The Pareto front of energy per token and latency."""
        return front(self.points)

    def recovered(self, way: str) -> float:
        """The share of the front that is found by overlapping that *way* alone."""
        alone = front(point for point in self.points if point.variant == way)
        best = self.front
        return sum(point in alone for point in best) / len(best)

    def change(self, way: str, gpus: int, batch: int) -> tuple[float, float]:
        """Seconds and joules of a *way* relative to no overlap."""
        plain, other = (_only(self.points, name, gpus, batch) for name in (NONE, way))
        return other.seconds / plain.seconds, other.joules / plain.joules


def _only(points: Iterable[BatchPoint], way: str, gpus: int, batch: int) -> BatchPoint:
    return next(point for point in points if (point.variant, point.gpus, point.batch) == (way, gpus, batch))


#: The sizes of a layer of Llama 3 70B, by the indices of docs/einsum.md.
SIZES: Mapping[str, int] = {"m": 8192, "K": 8, "r": 8, "i": 10, "h": 128, "F": 28672, "g": 2}


@frozen
class Saving:
    """The share of a layer's energy that fusion saves, for a batch of sequences of one length."""

    batch: int
    length: int
    share: float


def _norm(label: str, fused: bool) -> list[LayerOperation]:
    """The residual addition and the norm after it."""
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
    """The gate and up projections, and the activation of both."""
    if fused:
        return [op("bsm,mgF->bsgF", parallel="F", label="gate_up"),
                pointwise("silu_mul", "bsgF->bsF", parallel="F", label="act")]
    return [op("bsm,mF->bsF", parallel="F", label="gate"), op("bsm,mF->bsF", parallel="F", label="up"),
            pointwise("silu", "bsF->bsF", parallel="F"), pointwise("mul", "bsF,bsF->bsF", parallel="F")]


def operations(fused: bool) -> list[LayerOperation]:
    """The operations of a layer, fused or apart; attention is one kernel either way."""
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
    """The savings of each batch of *phase* on *tensor* A100, by batch and length."""
    layers = [Layer(operations(fused), SIZES, "fused" if fused else "apart") for fused in (False, True)]
    for batch in batches:
        for length in lengths:
            sizes = {"b": batch, "s": length if phase == "prefill" else 1, "z": length}
            apart, fused = (layer.with_sizes(**sizes).on("a100-80g", tensor=tensor).joules for layer in layers)
            yield Saving(batch, length, 1.0 - fused / apart)


def average(tensor: int = 8, batches: Sequence[int] = BATCHES, lengths: Sequence[int] = LENGTHS) -> Phases:
    """The mean savings over batches and lengths."""
    return Phases(*(mean(saving.share for saving in savings(phase, tensor, batches, lengths))
                    for phase in ("prefill", "decode")))
