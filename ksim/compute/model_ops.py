"""The notation as architectures write it: products with weights, attention over ragged batches, kernels between them.

The letters of the indices are those of `ksim.compute.sizes`.  `parallel` names the one that ranks of a tensor-parallel
group share, or ranks that share experts; where it is contracted, an all-reduce of the partial sums follows by itself.
Number formats, which rank holds what, and the batch come with the deployment.  What is made is what users write with
`ksim.op`, `ksim.pointwise`, `ksim.attend` and `ksim.communicate`.
"""

from ksim.compute.equation import parse
from ksim.compute.graph import CollectiveKind
from ksim.compute.notation import communicate as collectives
from ksim.compute.notation.attention import FusedAttention
from ksim.compute.notation.pointwise import Elementwise, Lookup
from ksim.compute.notation.product import Product
from ksim.foundation.units import DType


def op(
    equation: str, label: str, parallel: str = "", routed: str = "", bias: bool = False, quantized: bool = True,
    exact: bool = False, part: str = "", reduced: bool = True
) -> Product:
    """A product of activations with weights, such as ``op("tm,miKh->tiKh", "qkv", parallel="K")``.

    `routed` names the index of the expert that each row is sent to: a grouped GEMM.  Rows come as pairs x, or as
    tokens T that are gathered on the way.  `quantized` weights are stored, and their activations computed, in the
    formats that the deployment has for the `part` of the model; `exact` ones in FP32, the others in BF16.  Partial sums
    that are not `reduced` are left to a collective that follows by name, or added to others whose all-reduce is theirs
    too.
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
    writes: str = "bf16"
) -> Elementwise:
    """A kernel that moves numbers and does little with them, such as ``pointwise("silu_mul", "tgF->tF", "act")``.

    `equation` lists the tensors read and written, in BF16 unless `reads` or `writes` say otherwise; "cache" is the
    format of the KV cache.  The tensors of `scale` are weights.  Where pairs of tokens and experts come in or go out, a
    thread block has all pairs of a token.
    """
    tensors = parse(equation)
    first = dict.fromkeys((tensors.operands[0][0], tensors.results[0][0]))
    formats = [None if name == "cache" else DType.named(name) for name in (reads, writes)]
    return Elementwise(family, equation, parallel, label, scale=scale, rows=",".join(first), reads=formats[0],
                       writes=formats[1])


def attend(label: str = "attention", parallel: str = "K", window: int = 0, sinks: bool = False) -> FusedAttention:
    """Queries ``tKrh`` of each sequence over the keys and values ``zKh`` of its own context, in one kernel.

    `window` is how many tokens a query sees back, its own among them; 0 means all.  With `sinks`, each head has a
    weight that takes part in its softmax.
    """
    return FusedAttention("tKrh,zKh,zKh->tKrh", parallel, label, window=window, cache=None, sequences="", queries="t",
                          sinks=sinks)


def look_up(equation: str, label: str, parallel: str = "") -> Lookup:
    """One row of the weights for each token: the embedding, ``look_up("Vm->tm", "embedding", parallel="V")``."""
    return Lookup(equation, parallel, label)


def communicate(kind: CollectiveKind, indices: str, label: str, format: str = "bf16") -> collectives.Communicate:
    """A collective that no product implies; `indices` is the tensor that the ranks of a stage share, in `format`."""
    return collectives.Communicate(kind, indices, label=label, format=format)
