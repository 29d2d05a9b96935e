"""Multi-head latent attention from data sheets, as DeepSeek's models run it with TensorRT-LLM's kernels.

``seconds = start + (compute^p + memory^p)^(1/p)``.  Context works on expanded heads, generation on the latent vectors
themselves (absorbed projections), which all heads share.  Head sizes are those of DeepSeek-V2 and V3 unless a shape
says otherwise: 128 and 64 rotary for queries and keys, 128 for values, 512 latent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from ksim.compute.kernels.mla import LatentAttention
from ksim.foundation.units import DType, quantity
from ksim.oracles.compiled.arithmetic import Arrays
from ksim.oracles.efficiency.families import Family, Shapes
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["FAMILY", "FEATURES", "LAUNCHES", "LatentConstants", "physics", "shapes_of", "timed"]

FEATURES = (
    "start_share", "log_compute_over_memory", "log_waves", "idle", "generation", "log_heads", "log_length", "log_batch",
    "cache_bits",
)
LAUNCHES = ("context", "generation")

#: Sizes of a head: content and rotary part of queries and keys, values, and the latent vector.
CONTENT, ROTARY, VALUE, LATENT = 128.0, 64.0, 128.0, 512.0
#: Queries that a block of a context kernel takes, heads that one of a generation kernel does, and its keys at least.
QUERIES, HEADS, KEYS = 128.0, 64.0, 256.0


@frozen
class LatentConstants:
    """Seconds that even the smallest launch takes, shares of the peaks, and how softly the two sides add up.

    The defaults are those of Hopper's and Blackwell's kernels, whose two sides do not overlap.
    """

    start: float = field(default=13.8e-6, converter=quantity, validator=validators.ge(0))
    context: float = field(default=0.552, validator=(validators.gt(0), validators.le(1)))
    generation: float = field(default=1.0, validator=(validators.gt(0), validators.le(1)))
    memory: float = field(default=0.724, validator=(validators.gt(0), validators.le(1)))
    sharpness: float = field(default=1.0, validator=validators.ge(1))


@frozen(eq=False)
class LatentTime:
    """The time of latent attention and what it consists of, as in `Physics`; `features` are in the order of `FEATURES`.
    """

    seconds: Any
    compute: Any
    memory: Any
    waves: Any
    idle: Any
    features: tuple[Any, ...]


def timed(shapes: Mapping[str, Any], gpu: Gpu, constants: LatentConstants, m: Any) -> LatentTime:
    """The time of `batch` sequences, as `physics` has it, by the operations of the namespace *m*."""
    sizes: Mapping[str, Any] = {"content": CONTENT, "rotary": ROTARY, "value": VALUE, "latent": LATENT, **shapes}
    key_value = sizes["content"] + sizes["rotary"] + sizes["value"]
    batch, query, length, heads = shapes["batch"], shapes["query"], shapes["length"], shapes["heads"]
    latent = shapes["generation"] > 0.0
    pairs = query * (length - query) + query * (query + 1.0) / 2.0
    per_pair = m.where(latent, 2.0 * sizes["latent"] + sizes["rotary"], key_value) * 2.0
    blocks = batch * m.where(latent, m.ceil(query * heads / HEADS) * m.ceil(length / KEYS),
                             heads * m.ceil(query / QUERIES))
    waves = blocks / gpu.sms
    idle = m.ceil(waves) - waves
    cached = batch * length * (sizes["latent"] + sizes["rotary"]) * shapes["cache_bits"] / 8.0
    rows = batch * query * heads * DType.BF16.bytes
    expanded = rows * 2.0 * key_value
    absorbed = rows * (2.0 * sizes["latent"] + sizes["rotary"])
    memory = (cached + m.where(latent, absorbed, expanded)) / gpu.bandwidth
    compute = batch * heads * pairs * per_pair / gpu.flops[DType.BF16] * m.ceil(waves) / waves
    power = constants.sharpness
    share = m.where(latent, constants.generation, constants.context)
    seconds = constants.start + ((compute / share) ** power + (memory / constants.memory) ** power) ** (1.0 / power)
    features = (
        constants.start / seconds, m.minimum(m.maximum(m.log(compute / memory), -6.0), 6.0), m.log(waves),
        idle / m.ceil(waves), shapes["generation"], m.log(heads), m.log(length), m.log(batch),
        shapes["cache_bits"] / 16.0)
    return LatentTime(seconds, compute, memory, waves, idle, features)


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: LatentConstants = LatentConstants()) -> Physics:
    """Price attention of `batch` sequences, `query` new tokens each, the last of which sees `length` tokens.

    `heads` are those of this GPU, `generation` is 1 where the latent kernel runs, `cache_bits` are a cached number's.
    `content`, `rotary`, `value` and `latent` may give the sizes of a head.
    """
    time = timed(shapes, gpu, constants, Arrays)
    return Physics(time.seconds, time.compute, time.memory, time.waves, time.idle,
                   (shapes["generation"] > 0.0).astype(np.intp), np.column_stack(time.features))


def shapes_of(kernel: LatentAttention) -> dict[str, Any]:
    """The columns of a batch of equal sequences with as many queries, keys and pairs in all as *kernel* has.

    Its counts may be columns, or symbols; what all kernels share stays a number.
    """
    query = kernel.queries / kernel.sequences
    return {"batch": kernel.sequences, "query": query,
            "length": kernel.pairs / kernel.queries + (query - 1.0) / 2.0,  # the last query sees more than the mean one
            "heads": float(kernel.heads), "generation": float(kernel.form == "absorbed"),
            "cache_bits": 8.0 * kernel.cache.bytes, "content": float(kernel.content), "rotary": float(kernel.rotary),
            "value": float(kernel.value), "latent": float(kernel.latent)}


def _columns(kernels: Sequence[LatentAttention], gpu: Gpu) -> Shapes:
    several = [shapes_of(kernel) for kernel in kernels]
    table = np.array([[*shapes.values()] for shapes in several], dtype=np.float64)
    return dict(zip(several[0], table.T, strict=True))


def _sweep(kernel: LatentAttention, gpu: Gpu) -> Shapes:
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.float64) for column in shapes_of(kernel).values()))
    return dict(zip(shapes_of(kernel), columns, strict=True))


FAMILY = Family(lambda gpu, shapes, constants: physics(gpu, shapes, LatentConstants(**constants)), FEATURES, LAUNCHES,
                _columns, lambda kernel: tuple(dict.fromkeys((f"mla/{kernel.cache.label}", "mla/bf16"))), sweep=_sweep)
