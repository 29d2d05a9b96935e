"""Operations as architectures write them: products with weights, attention over ragged batches, kernels between them.

Each function makes an operation of `ksim.compute.notation`, as `ksim.op` and the like do for users.  Indices are the
letters of `ksim.compute.sizes`.  `parallel` names the index that tensor parallelism splits; where it is contracted, an
all-reduce of the partial sums follows by itself.  The deployment decides number formats and which rank holds what, the
batch decides the shape of attention.
"""

from ksim.compute.graph import CollectiveKind
from ksim.compute.notation import communicate as collectives
from ksim.compute.notation.attention import FusedAttention
from ksim.compute.notation.pointwise import Elementwise, Lookup
from ksim.compute.notation.product import Product
from ksim.compute.sizes import parse
from ksim.foundation.units import DType

__all__ = ["Lookup", "attend", "communicate", "op", "pointwise"]


def op(
    equation: str, label: str, parallel: str = "", routed: str = "", bias: bool = False, quantized: bool = True,
    exact: bool = False, part: str = "", reduced: bool = True
) -> Product:
    """A product of activations with weights, such as ``op("tm,miKh->tiKh", "qkv", parallel="K")``.

    `routed` names the index of the expert that each row is sent to: a grouped GEMM.  Its rows are pairs x, or tokens T
    that are gathered on the way.  `quantized` weights and their activations have the formats of the deployment for this
    `part` of the model; `exact` ones are in FP32, the others in BF16.  Without `reduced`, a later operation adds up the
    partial sums of the ranks.
    """
    read = parse(equation).of(2)
    left, right, out = map(set, read.tensors)
    if batch := left & right & out:
        raise read.wrong(f"index {min(batch)!r} is in both inputs and in the result")
    if parallel and parallel not in right:
        raise read.wrong(f"parallel index {parallel!r} is not one of the weights")
    format_ = DType.FP32 if exact else None if quantized else DType.BF16
    return Product(equation, parallel, label, weights=format_, activations=format_, inputs=DType.BF16, part=part,
                   routed=routed, bias=bias, reduced=reduced and not routed)


def pointwise(
    family: str, equation: str, label: str, parallel: str = "", scale: str = "", reads: str = "bf16",
    writes: str = "bf16", tokens: str = ""
) -> Elementwise:
    """A kernel that moves memory and computes little, such as ``pointwise("silu_mul", "tgF->tF", "act")``.

    `equation` lists the tensors read and written, in BF16 unless `reads` or `writes` say otherwise; "cache" is the
    format of the KV cache.  `scale` lists weights.  Where one side has pairs of tokens and experts, a thread block
    takes all pairs of a token.  `tokens` are those of `Elementwise`.
    """
    tensors = parse(equation)
    first = dict.fromkeys((tensors.operands[0][0], tensors.results[0][0]))
    formats = [None if name == "cache" else DType.named(name) for name in (reads, writes)]
    return Elementwise(family, equation, parallel, label, scale=scale, rows=",".join(first), reads=formats[0],
                       writes=formats[1], tokens=tokens)


def attend(label: str = "attention", parallel: str = "K", window: int = 0, sinks: bool = False,
           chunked: bool = False, own: bool = True, kind: str = "Krh") -> FusedAttention:
    """Queries ``tKrh`` of each sequence over the keys and values ``zKh`` of its own context, in one kernel.

    A query sees the last `window` tokens, its own among them; 0 means all.  With `sinks`, each head has a weight that
    takes part in its softmax.  *chunked* queries see the tokens of their own chunk of `window` tokens instead.  Without
    keys of its *own*, a layer reads those of an earlier one.  *kind* names the indices of KV heads, of query heads that
    share one, and of a head's numbers.
    """
    keys = f"z{kind[0]}{kind[-1]}"
    return FusedAttention(f"t{kind},{keys},{keys}->t{kind}", parallel, label, window=window, cache=None, sequences="",
                          queries="t", sinks=sinks, chunked=chunked, own=own)


def communicate(kind: CollectiveKind, indices: str, label: str, format: str = "bf16") -> collectives.Communicate:
    """A collective over the tensor-parallel group that no product implies, of the tensor *indices* in *format*."""
    return collectives.Communicate(kind, indices, label=label, format=format)
