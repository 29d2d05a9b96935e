"""Collectives: which rows teach NCCL's and vLLM's protocols inside a node; what they taught lies in `data/transports`.

A protocol takes ``start + rounds x hop + further peers x peer + bytes over a link / (bandwidth x share)``, by routes
of `ksim.network.network`.  NCCL takes the least of its protocols; a ring has 2 (n - 1) rounds for an all-reduce and n - 1
otherwise, and pairs and groups of eight reach another share.  vLLM goes by size alone: one round, then two up to its
limit for the architecture, then PyTorch's symmetric memory up to that one's, then NCCL.  The limits are those of its
source, and the table's times jump where they say.

Logarithms of times are fitted, with a soft L1 loss (scale 0.1 for NCCL, 0.05 for vLLM) from ten and six starts; NCCL's
all-reduces count twice.  GPUs of one NVLink generation are fitted at once.  `tests/anchors` holds what is left:
5.7 % on the mean of all-reduces, 5.8 of gathers and scatters, 8.0 of all-to-alls, 3.5 of what vLLM carries out itself.

From 18 messages of a GPU (`SWEEP`) instead, all-reduces are off: A100 16, 12 and 5 %, H200 11, 8 and 4 %, B200 5, 4 and
7 % for 2, 4 and 8 GPUs.  Learned from other architectures they are 5 to 13 % off on A100, 33 to 45 on Hopper, 20 to 26
on Blackwell: what starting takes is in no data sheet.  PCIe boxes cannot be had from one another at all (up to 360 %),
for boards differ in their sockets.
"""

__all__ = ["EXCLUSIONS", "SWEEP"]

#: Messages in bytes that a sweep of one machine measures, each among 2, 4 and 8 GPUs.
SWEEP: tuple[int, ...] = (512, 2**15, 2**20, 2**23, 2**26, 2**29)
#: Left out of training and test alike, and why.
EXCLUSIONS: tuple[tuple[str, str], ...] = (
    ("dtype == int8", "NCCL moves bytes: the rows repeat those of half"),
    ("impl == vllm_eager", "a copy of the input and launches from the host are inside"),
    ("impl == trtllm_custom", "another engine's kernels"),
)
