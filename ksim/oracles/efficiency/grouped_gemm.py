"""Grouped GEMM from data sheets: an expert layer's matrix products, as vLLM's Triton fused experts launch them.

``seconds = start + (compute^p + memory^p)^(1/p)``: a soft maximum, for at its ridge a kernel reaches neither peak.
`compute` works off tiles, each filled up to its full height, in waves over the SMs; what a tile reaches of the peak
grows with its FLOP per operand byte.  `memory` reads the weights of the experts that have rows, once.  The tile's
height and width follow the number of tokens, not of rows (vLLM v0.22, ``fused_moe.get_default_config``; width 256
above 512 tokens as in the tuned files for the H200).  The defaults of `GroupedGemmConstants` are least absolute
errors of log time over our H200 sweep, the whole expert layer at once: 3.7 % mean error, 4.4 % on a layer shape or a
skew left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from ksim.foundation.units import DType, quantity
from ksim.oracles.efficiency.families import HEIGHTS, Family, Shapes, attributes, product_names, tiles
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["FAMILY", "FEATURES", "LAUNCHES", "GroupedGemmConstants", "physics"]

#: Up to how many tokens vLLM takes each of the `HEIGHTS` of a tile; the widths go with their own bounds.
HEIGHT_TOKENS = (32, 96, 512)
WIDTHS = (64, 128, 256)
WIDTH_TOKENS = (64, 512)
LAUNCHES = tuple(f"{height}x{width}" for height in HEIGHTS for width in WIDTHS)

FEATURES = (
    "start_share", "log_compute_over_memory", "log_waves", "idle", "log_rows_per_expert", "fill", "log_weight",
    "log_narrow", "residency", "log_imbalance", "log_tokens",
)

#: A tile's step through the depth, of which the last is padded, and up to how many tokens launches grow slower.
DEPTH = 64.0
RAMP_TOKENS = 64.0
#: Which peak multiplies numbers of so many bits; GPUs without FP8 have INT8.
FORMATS = ((4.0, DType.FP4), (8.0, DType.FP8), (8.0, DType.INT8), (16.0, DType.BF16))
#: A tile of 128 x 128: rows x columns over their sum, the FLOP per operand to which the constant `compute` belongs.
SQUARE = 64.0
#: Bytes that an SM reads from the L2 cache in a clock: three quarters of the 64 that its port takes (NVIDIA, A100 white
#: paper).
L2_BYTES_PER_CLOCK = 48.0


@frozen
class GroupedGemmConstants:
    """Shares of the peaks, the seconds that even the smallest launch takes, and how softly the two sides add up.

    `ramp` s come on top for each doubling of the tokens up to 64, and `row` s for each row: what aligns and sorts
    rows by expert.  `growth` is the power of a tile's operands' reuse, `depth` how many columns of x a tile's prologue
    and epilogue take as long as.
    """

    start: float = field(default=7.86e-6, converter=quantity, validator=validators.ge(0))
    ramp: float = field(default=0.834e-6, converter=quantity, validator=validators.ge(0))
    row: float = field(default=0.2e-9, converter=quantity, validator=validators.ge(0))
    compute: float = field(default=0.545, validator=(validators.gt(0), validators.le(1)))
    growth: float = field(default=0.355, validator=validators.ge(0))
    depth: float = field(default=117.0, validator=validators.ge(0))
    memory: float = field(default=0.935, validator=(validators.gt(0), validators.le(1)))
    sharpness: float = field(default=3.47, validator=validators.ge(1))


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: GroupedGemmConstants = GroupedGemmConstants()) -> Physics:
    """Price ``out[rows of e, n] = x[rows of e, k] @ w[e, k, n]`` in `shapes`' columns.

    `tokens` enter the expert layer, as `rows` of which `inputs` differ; `active` experts have rows, the fullest of
    them `largest`; `tiles16` ... `tiles128` are sums over experts of rows / height, rounded up.  `n` and `k` are an
    expert's columns and depth, `weight_bits` and `bits` of a weight and of an operand as multiplied.  `warm` is 1
    where the launch before read the same weights, as in benchmarks that repeat one layer, and 0 in a server.
    """
    height, width, blocks = _launch(shapes)
    waves = blocks / gpu.sms
    idle = np.ceil(waves) - waves
    n, k, rows = shapes["n"], shapes["k"], shapes["rows"]
    per_sm = _peaks(gpu, shapes["bits"]) / gpu.sms
    reuse = height * width / (height + width) / SQUARE
    deep = np.ceil(k / DEPTH) * DEPTH + constants.depth
    compute = np.maximum(waves, 1.0) * 2.0 * height * width * deep / per_sm
    memory, resident = _memory(gpu, shapes)
    power = constants.sharpness
    reached = np.minimum(1.0, constants.compute * reuse**constants.growth)
    body = ((compute / reached) ** power + (memory / constants.memory) ** power) ** (1.0 / power)
    start = constants.start + constants.ramp * np.log2(np.minimum(shapes["tokens"], RAMP_TOKENS)) + constants.row * rows
    seconds = start + body
    features = np.column_stack([
        start / seconds,
        np.clip(np.log(compute / memory), -6.0, 6.0),
        np.log(waves),
        idle / np.maximum(np.ceil(waves), 1.0),
        np.log(rows / shapes["active"]),
        rows / (blocks / np.ceil(n / width) * height),
        # Alike for an expert's two matrices, whose layer was measured as one.
        np.log(n * k / 128.0**2),
        np.log(np.minimum(n, k) / 128.0),
        resident,
        np.log(shapes["largest"] * shapes["active"] / rows),
        np.log(shapes["tokens"]),
    ])
    launch = np.searchsorted(HEIGHTS, height) * len(WIDTHS) + np.searchsorted(WIDTHS, width)
    return Physics(seconds, compute, memory, waves, idle, launch, features)


def _memory(gpu: Gpu, shapes: Mapping[str, Array]) -> tuple[Array, Array]:
    """Seconds of memory traffic, and what share of it the L2 cache may serve."""
    n, k = shapes["n"], shapes["k"]
    weights = shapes["active"] * n * k * shapes["weight_bits"] / 8.0
    traffic = weights + shapes["inputs"] * k * shapes["bits"] / 8.0 + shapes["rows"] * n * DType.BF16.bytes
    resident = shapes["warm"] / (1.0 + (traffic / gpu.l2) ** 8.0)
    cached = min(1.0, gpu.bandwidth / (L2_BYTES_PER_CLOCK * gpu.sms * gpu.clock))
    return traffic / gpu.bandwidth * (1.0 - resident * (1.0 - cached)), resident


def _launch(shapes: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Height and width of the tiles that vLLM takes, and how many blocks that makes."""
    taller = np.searchsorted(HEIGHT_TOKENS, shapes["tokens"])
    counts = np.stack([shapes[f"tiles{height}"] for height in HEIGHTS])
    high = np.take_along_axis(counts, taller[None], axis=0)[0]
    width = np.asarray(WIDTHS, dtype=np.float64)[np.searchsorted(WIDTH_TOKENS, shapes["tokens"])]
    return np.asarray(HEIGHTS, dtype=np.float64)[taller], width, high * np.ceil(shapes["n"] / width)


def _peaks(gpu: Gpu, bits: Array) -> Array:
    """FLOP/s of *gpu* at numbers of so many *bits*; a GPU without them multiplies the next wider ones."""
    peaks = np.empty_like(bits)
    for width in np.unique(bits):
        wider = next(dtype for bits_of, dtype in FORMATS if bits_of >= width and dtype in gpu.flops)
        peaks[bits == width] = gpu.flops[wider]
    return peaks


def _columns(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    spread = [tiles(kernel.expert_rows) for kernel in kernels]
    return {
        **attributes(kernels, ("n", "k", "tokens")),
        **{name: np.array([of_kernel[name] for of_kernel in spread]) for name in spread[0]},
        "inputs": np.array([kernel.rows if kernel.inputs is None else kernel.inputs for kernel in kernels], float),
        "weight_bits": np.array([8.0 * kernel.weights.element.bytes for kernel in kernels]),
        "bits": np.array([8.0 * kernel.activations.element.bytes for kernel in kernels]),
        "warm": np.zeros(len(kernels)),
    }


FAMILY = Family(lambda gpu, shapes, constants: physics(gpu, shapes, GroupedGemmConstants(**constants)), FEATURES,
                LAUNCHES, _columns, lambda kernel: product_names("grouped_gemm", kernel))
