"""The experts of a stage's ranks: their rows drawn step by step, what they cost each rank, and how EPLB moves them."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import simpy
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.expert_draws import ExpertDraws
from ksim.cost.expert_times import ExpertTimes
from ksim.flow.events import ExpertsMoved
from ksim.network.network import FleetNetwork

__all__ = ["DrawnExperts", "StepExperts"]

Floats = NDArray[np.float64]


@frozen(eq=False)
class StepExperts:
    """The `rows` of the experts of each rank in one step, their `seconds` and, of these, those `clocked`: (layers,
    ranks)."""

    rows: NDArray[np.int64]
    seconds: Floats
    clocked: Floats


@frozen(eq=False)
class DrawnExperts:
    """Draws the rows of all experts of a stage, step by step, and prices them rank by rank.

    `half_times` are the prices in one of two micro-batches.
    """

    engine: int
    stage: int
    draws: ExpertDraws
    times: ExpertTimes
    half_times: ExpertTimes

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the kernels that depend on rows."""
        return frozenset(self.times.labels)

    def draw(self, tokens: int, parts: int = 1) -> StepExperts:
        """The next step, of so many *tokens* on all data ranks together, in so many *parts*; EPLB counts each of these.
        """
        drawn = [self.draws.draw(tokens // parts) for _ in range(parts)]
        times = self.times if parts == 1 else self.half_times
        costs, rows = [times.costs(each) for each in drawn], np.concatenate([each.rows for each in drawn])
        return StepExperts(rows, np.concatenate([each.seconds for each in costs]),
                         np.concatenate([each.compute_bound for each in costs]))

    def rearrange(self, network: FleetNetwork, gpus: Sequence[int], note: Callable[[ExpertsMoved], None]
                  ) -> simpy.Event | None:
        """Have EPLB move experts among *gpus*, if it is time; the event fires when all weights have arrived.

        All layers move at once, and all ranks wait, as in vLLM without `use_async`.  What moves is one flow over all of
        its links, as slow as the fullest of them.
        """
        if not self.draws.due:
            return None
        moves, slices, start = self.draws.rebalance(), len(gpus) // self.draws.mixture.ranks, network.env.now
        loads: defaultdict[int, float] = defaultdict(float)
        for (source, target), size in moves.bytes.items():
            for part in range(slices):
                ends = (f"gpu{gpus[rank * slices + part]}" for rank in (source, target))
                for link in network.links.path(*ends):
                    loads[link] += size
        most = max(loads.values(), default=0.0)
        arrived = network.flows.start(most, [*loads], weights=[load / most for load in loads.values()]).done
        arrived.callbacks.append(lambda _: note(ExpertsMoved(
            network.env.now, engine=self.engine, stage=self.stage, start=start, experts=moves.experts,
            bytes=slices * sum(moves.bytes.values()), before=moves.before, after=moves.after)))
        return arrived
