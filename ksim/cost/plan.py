"""What all steps of so many tokens and samples share."""

from functools import cached_property, lru_cache

import numpy as np
from attrs import frozen

from ksim.compute.graph import Op
from ksim.cost.graphs import Launching
from ksim.cost.parts import BatchLaunch, Part
from ksim.cost.pricer import of_host
from ksim.flow.costs import Costs, StepSummary
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock, StepCost

__all__ = ["Plan", "Shape"]

#: Tokens, rows of logits, how they are launched, the tokens of all data ranks, and the launches that the batch has
#: nothing for.
Shape = tuple[int, int, Launching, int | None, frozenset[Op]]


@frozen(eq=False, slots=False)
class Plan:
    """Steps of one `shape`: the blocks of kernels that they share, and the launches that depend on the batch.

    `costs` are of the blocks.  The batch's kernels follow in the order of `batch_launches`, and the kernels that copy
    its inputs to the GPU are the last of them.
    """

    shape: Shape
    blocks: tuple[PricedBlock, ...]
    batch_launches: tuple[BatchLaunch, ...]
    costs: Costs
    launch: str
    launch_seconds: float

    @classmethod
    def of(cls, shape: Shape, body: Part, head: Part, gaps: float, launch_seconds: float) -> "Plan":
        """The step of a *body* and a *head*, with so many seconds of *gaps* between its kernels."""
        reach = dict(body.reach)
        for family, far in head.reach.items():
            reach[family] = reach[family] + far if family in reach else far
        costs = (body.costs + head.costs + Costs.of(seconds=gaps)).with_reach(reach.values())
        inputs = PricedBlock(_NOTHING, (-1 - len(body.batch_launches),))
        blocks = (inputs, *body.blocks, *head.blocks, _gaps(gaps))
        return cls(shape, blocks, body.batch_launches, costs, shape[2].value, launch_seconds)

    def step(self, kernels: tuple[KernelCost, ...]) -> StepCost:
        """The step with these *kernels* of its batch, the last of which copy its inputs.

        Attention is one family of kernels: it errs alike in all layers.
        """
        costs, reach = self.costs + kernels[-1].costs, np.zeros_like(self.costs.reach)
        for launch, kernel in zip(self.batch_launches, kernels, strict=False):
            runs = launch.repeat * kernel.costs
            costs, reach = costs + runs, reach + runs.reach
        return StepCost(self.blocks, kernels, costs.with_reach([self.costs.reach, reach]), self.launch,
                        self.launch_seconds)

    @cached_property
    def summary(self) -> StepSummary:
        """What the clock has to know of the blocks."""
        return StepSummary.of(self.costs, self.launch_seconds)


_NOTHING = PricedBlock.of(()).kernels


@lru_cache(maxsize=4096)
def _gaps(seconds: float) -> PricedBlock:
    """The GPU's waits between kernels."""
    return PricedBlock.of([of_host("gaps", seconds)])
