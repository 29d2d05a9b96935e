"""Rejection sampling: which drafted tokens stand, and the token after them (vLLM 0.33, rejection_sampler_utils.py).

The target's own head has computed the logits of all rows, cast them to FP32 and gone through them once, which is where
its time goes.  Then come a kernel that walks along each sequence's drafts, one that goes through the logits at the
first token that does not stand, and one that writes the token that is sampled there.
"""

from ksim.compute.model import Decoder
from ksim.compute.model_ops import pointwise

__all__ = ["verification"]

KERNELS = (pointwise("rejection", "s->s", "walk", reads="fp32", writes="fp32"),
           pointwise("argmax", "sV->s", "resample", reads="fp32", writes="fp32"),
           pointwise("rejection", "s->s", "insert", reads="fp32", writes="fp32"))


def verification(target: Decoder) -> Decoder:
    """What runs beside *target* after a step that verifies: on every rank the same."""
    return Decoder(target.sizes, (), (), KERNELS, target.max_length, sampled=0)
