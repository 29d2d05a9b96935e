"""Launches for LoRA adapters on one rank, whose shapes the batch decides."""

from collections import Counter
from functools import lru_cache
from typing import ClassVar

from attrs import frozen

from ksim.compute.graph import HostCopy
from ksim.compute.kernels.lora import MAPPING, Counts, LoraGemm, Stage
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

__all__ = ["LoraLayer", "LoraLoad", "LoraMapping", "LoraZero"]


@frozen(cache_hash=True)
class LoraLayer:
    """A shrink or an expand; batches without adapters have none, and CUDA graphs of their own."""

    stage: Stage
    widths: Counts
    rank: int

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> LoraGemm | None:
        """The kernel for the adapters of *batch*; None where there are none, and nothing is launched."""
        if not batch.adapters:
            return None
        return _gemm(self.stage, tuple(batch.adapters), self.widths, self.rank)


@lru_cache(maxsize=8192)
def _gemm(stage: Stage, adapters: tuple[int, ...], widths: Counts, rank: int) -> LoraGemm:
    """One object for equal launches, which are found sooner."""
    return LoraGemm(stage, tuple(sorted(Counter(adapters).items())), widths, rank)


@frozen(cache_hash=True)
class LoraZero:
    """Clears the result of a shrink, whose blocks add to it: as many numbers a token as `width`."""

    width: int

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> Pointwise | None:
        rows = sum(batch.adapters)
        return Pointwise("lora_zero", 0.0, rows * self.width * DType.FP32.bytes, 0.0, rows) if rows else None


@frozen(cache_hash=True)
class LoraMapping:
    """Sorts the tokens of a step by their adapters."""

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> Pointwise | None:
        rows = sum(batch.adapters)
        return Pointwise("lora_mapping", 3.0 * MAPPING * rows, 3.0 * MAPPING * rows, rows, rows) if rows else None


@frozen(cache_hash=True)
class LoraLoad:
    """Copies adapters to their slots before a step: for each of `modules`, so many bytes here for a rank of theirs."""

    modules: tuple[tuple[str, float], ...]
    rate: float

    of_adapters: ClassVar[bool] = True
    of_loads: ClassVar[bool] = True

    def over(self, batch: Batch) -> HostCopy | None:
        """One copy for all adapters that come with *batch*; None where none comes, or has anything for this stage."""
        size = sum(load.rank * each for load in batch.loads for module, each in self.modules
                   if not load.modules or module in load.modules)
        return HostCopy(size, self.rate) if size else None
