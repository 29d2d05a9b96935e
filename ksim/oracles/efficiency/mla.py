"""Multi-head latent attention from data sheets, as DeepSeek's models run it with TensorRT-LLM's kernels.

``seconds = start + (compute^p + memory^p)^(1/p)``.  Context works on expanded heads, generation on the latent vectors
themselves (absorbed projections), which all heads share.  Head sizes are those of DeepSeek-V2 and V3 unless a shape
says otherwise: 128 and 64 rotary for queries and keys, 128 for values, 512 latent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from ksim.foundation.units import DType, quantity
from ksim.oracles.efficiency.families import Family, Shapes
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["FAMILY", "FEATURES", "LAUNCHES", "LatentConstants", "physics"]

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


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: LatentConstants = LatentConstants()) -> Physics:
    """Price attention of `batch` sequences, `query` new tokens each, the last of which sees `length` tokens.

    `heads` are those of this GPU, `generation` is 1 where the latent kernel runs, `cache_bits` are a cached number's.
    `content`, `rotary`, `value` and `latent` may give the sizes of a head.
    """
    sizes: Mapping[str, Any] = {"content": CONTENT, "rotary": ROTARY, "value": VALUE, "latent": LATENT, **shapes}
    key_value = sizes["content"] + sizes["rotary"] + sizes["value"]
    batch, query, length, heads = shapes["batch"], shapes["query"], shapes["length"], shapes["heads"]
    latent = shapes["generation"] > 0.0
    pairs = query * (length - query) + query * (query + 1.0) / 2.0
    per_pair = np.where(latent, 2.0 * sizes["latent"] + sizes["rotary"], key_value) * 2.0
    blocks = batch * np.where(latent, np.ceil(query * heads / HEADS) * np.ceil(length / KEYS),
                              heads * np.ceil(query / QUERIES))
    waves = blocks / gpu.sms
    idle = np.ceil(waves) - waves
    cached = batch * length * (sizes["latent"] + sizes["rotary"]) * shapes["cache_bits"] / 8.0
    rows = batch * query * heads * DType.BF16.bytes
    expanded = rows * 2.0 * key_value
    absorbed = rows * (2.0 * sizes["latent"] + sizes["rotary"])
    memory = (cached + np.where(latent, absorbed, expanded)) / gpu.bandwidth
    compute = batch * heads * pairs * per_pair / gpu.flops[DType.BF16] * np.ceil(waves) / waves
    power = constants.sharpness
    share = np.where(latent, constants.generation, constants.context)
    seconds = constants.start + ((compute / share) ** power + (memory / constants.memory) ** power) ** (1.0 / power)
    features = np.column_stack([
        constants.start / seconds, np.clip(np.log(compute / memory), -6.0, 6.0), np.log(waves), idle / np.ceil(waves),
        shapes["generation"], np.log(heads), np.log(length), np.log(batch), shapes["cache_bits"] / 16.0,
    ])
    return Physics(seconds, compute, memory, waves, idle, latent.astype(np.intp), features)


def _columns(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    """The columns of a batch of equal sequences with as many queries, keys and pairs in all as each kernel's."""
    table = np.array([(
        kernel.sequences, kernel.queries / kernel.sequences, kernel.pairs / kernel.queries, kernel.heads,
        kernel.form == "absorbed", 8.0 * kernel.cache.bytes, kernel.content, kernel.rotary, kernel.value, kernel.latent,
    ) for kernel in kernels], dtype=np.float64)
    names = ("batch", "query", "length", "heads", "generation", "cache_bits", "content", "rotary", "value", "latent")
    shapes = dict(zip(names, table.T, strict=True))
    shapes["length"] = shapes["length"] + (shapes["query"] - 1.0) / 2.0  # the last query sees more than the mean one
    return shapes


FAMILY = Family(lambda gpu, shapes, constants: physics(gpu, shapes, LatentConstants(**constants)), FEATURES, LAUNCHES,
                _columns, lambda kernel: tuple(dict.fromkeys((f"mla/{kernel.cache.label}", "mla/bf16"))))
