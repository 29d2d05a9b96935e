"""The memory that a step needs beside weights and cache."""

from ksim.compute.graph import Collective, bind
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.grouped_gemm import GroupedGemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.compute.model import Model
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["activations"]


#: How many tokens vLLM takes through an expert layer at a time (VLLM_FUSED_MOE_CHUNK_SIZE).
EXPERT_TOKENS = 16 * 1024


def activations(model: Model, batch: Batch, logits: int, shard: Shard) -> float:
    """Bytes that a step of *batch* with so many rows of *logits* needs beside weights and cache.

    They are the residual stream, hidden states, and what the largest kernel reads and writes.
    """
    streams = 2 * batch.tokens * model.decoder.sizes["m"] * DType.BF16.bytes
    blocks = model.graph(batch.tokens, logits, shard).blocks
    kernels = (bind(op.kernel, batch) for block in blocks for op in block.ops)
    return streams + max(_working_set(kernel) for kernel in kernels)


def _working_set(kernel: Kernel | Collective | None) -> float:
    """Bytes of activations that *kernel* reads and writes; those of attention are small, and left out."""
    if isinstance(kernel, Gemm):
        return kernel.m * (kernel.k + kernel.n) * DType.BF16.bytes
    if isinstance(kernel, GroupedGemm):
        chunk = min(1.0, EXPERT_TOKENS / kernel.tokens)
        return chunk * kernel.rows * (kernel.k + kernel.n) * DType.BF16.bytes
    return kernel.work.bytes if isinstance(kernel, Pointwise) else 0.0
