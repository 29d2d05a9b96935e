"""Layers that the tests of pricing share: Llama 3.1 8B's, as a user writes it."""

from ksim import Layer, attend, op, pointwise

SIZES = {"b": 1, "s": 4096, "z": 4096, "m": 4096, "K": 8, "r": 4, "i": 6, "h": 128, "F": 14336, "g": 2}
ATTEND = attend("bKrsh,bKzh,bKzh->bKrsh", "K")
ATTENTION = [
    pointwise("fused_add_rms_norm", "bsm,bsm->bsm,bsm", label="attention_norm", scale="m"),
    op("bsm,miKh->bsiKh", "K", "qkv"),
    pointwise("rope", "bsKrh,bsKh->bsKrh,bsKh", "K"),
    pointwise("kv_write", "bsKh,bsKh->bsKh,bsKh", "K"),
    ATTEND,
    op("bsKrh,Krhm->bsm", "K", "o_proj"),
]
MLP = [
    pointwise("fused_add_rms_norm", "bsm,bsm->bsm,bsm", label="mlp_norm", scale="m"),
    op("bsm,mgF->bsgF", "F", "gate_up"),
    pointwise("silu_mul", "bsgF->bsF", "F", "act"),
    op("bsF,Fm->bsm", "F", "down"),
]
LLAMA = Layer([*ATTENTION, *MLP], SIZES, "llama")
#: Attention in three kernels, which write the scores to memory.
UNFUSED = Layer([
    op("bKrsh,bKzh->bKrsz", "K", "QK"),
    pointwise("softmax", "bKrsz->bKrsz", "K", rows="bKrs"),
    op("bKrsz,bKzh->bKrsh", "K", "AV"),
], SIZES, "unfused")
