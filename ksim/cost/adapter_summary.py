"""What launches for LoRA adapters add to the summaries of steps."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from attrs import define, field

from ksim.cost.plan import BatchLaunch
from ksim.cost.pricer import Pricer
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.flow.costs import Costs

__all__ = ["AdapterSummary"]

#: Numbers of tokens by adapter whose costs are kept.
MOST = 4096
_NAMES = ("seconds", "joules", "compute_bound", "sm_action_joules", "sm_active_joules", "compute_bound_joules")


@define(eq=False)
class AdapterSummary:
    """All of a plan's `launches` for adapters, priced once for each set of tokens by adapter."""

    launches: Sequence[BatchLaunch]
    pricer: Pricer
    _known: dict[Any, tuple[float, ...]] = field(factory=dict, init=False)

    repeat: ClassVar[int] = 1

    def of_batch(self, batch: Batch) -> tuple[float, ...]:
        """The numbers of a step, as `AttentionSummary` has them."""
        if (key := batch.adapters) not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = self._priced(batch)
        return self._known[key]

    def of_batches(self, batches: Batches) -> tuple[Any, ...]:
        """The same of many, as columns."""
        return tuple(np.array([self.of_batch(batch) for batch in batches.batches]).T)

    def _priced(self, batch: Batch) -> tuple[float, ...]:
        asked: list[Any] = [(launch.label, launch.layer.over(batch)) for launch in self.launches]
        costs = self.pricer.kernels(asked)
        total = sum((launch.repeat * cost.costs for launch, cost in zip(self.launches, costs, strict=True)), Costs.of())
        return tuple(float(getattr(total, name)) for name in _NAMES)
