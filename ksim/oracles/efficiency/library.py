"""An oracle for kernels of another library than was measured: so much faster or slower, kind by kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.oracles import Estimate, bounds, estimates
from ksim.oracles.efficiency.answers import Singly, singly
from ksim.specs.hardware import Gpu


@frozen
class Library:
    """What `oracle` says, times what `paces` has for "family/format of weights"; never faster than the roofline.

    The constants of profiles come from vLLM's kernels.
    """

    oracle: Any
    paces: Mapping[str, float] = field(factory=dict)

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        answers = estimates(self.oracle, kernels, gpu)
        return [self._paced(kernel, answer, gpu) for kernel, answer in zip(kernels, answers, strict=True)]

    def singly(self, layer: AttentionLayer, gpu: Gpu) -> Singly | None:
        """What prices kernels of *layer* one by one, where their library is the one that was measured."""
        return None if f"{layer.family}/" in self.paces else singly(self.oracle, layer, gpu)

    def _paced(self, kernel: Kernel, answer: Estimate, gpu: Gpu) -> Estimate:
        pace = self.paces.get(f"{kernel.family}/{getattr(kernel, 'weights', '')}")
        if pace is None:
            return answer
        pace = max(pace, max(bounds(kernel, gpu)) / answer.seconds)
        return evolve(answer, seconds=pace * answer.seconds, eta=pace * answer.eta, low=pace * answer.low,
                      high=pace * answer.high)
