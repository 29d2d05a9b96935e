"""Launches whose shape waits for the batch: the contract, and kernels over some of a batch's tokens."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeGuard, runtime_checkable

from attrs import evolve, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.batched_gemm import BatchedGemm
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch


@runtime_checkable
class Layer(Protocol):
    """A launch on one rank before a batch is known; hashable, and equal where it launches the same for any batch."""

    def over(self, batch: Batch) -> Kernel | None:
        """The kernel that is launched for *batch*; None if it has nothing to do there."""
        ...


def waits(kernel: object) -> TypeGuard[Layer]:
    """Whether *kernel* waits for its batch: quicker than to ask whether the protocol knows it."""
    return hasattr(kernel, "over")


#: Tokens of a batch: of sequences with one new token; new ones of the others, those among them that follow
#: cached ones, and what these have in the cache.
Tokens = Literal["decodes", "prompts", "continued", "cached"]
_COUNTS: Mapping[Tokens, Callable[[Batch], int]] = {
    "decodes": lambda batch: len(batch.contexts),
    "prompts": lambda batch: sum(new for new, _ in batch.chunks),
    "continued": lambda batch: sum(new for new, context in batch.chunks if context),
    "cached": lambda batch: sum(context for _, context in batch.chunks),
}


@frozen
class Rows:
    """What `kernel` does for one row, done for as many as a batch has tokens of a kind."""

    kernel: Gemm | BatchedGemm | Pointwise
    tokens: Tokens

    def over(self, batch: Batch) -> Kernel | None:
        rows = _COUNTS[self.tokens](batch)
        if not rows:
            return None
        if isinstance(self.kernel, Pointwise):
            return Pointwise(self.kernel.family, rows * self.kernel.read_bytes, rows * self.kernel.write_bytes,
                             rows * self.kernel.flops, rows * self.kernel.rows)
        return evolve(self.kernel, m=rows * self.kernel.m)
