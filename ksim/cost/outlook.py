"""Attention of steps to come: while nobody joins or leaves, the next batches are known and priced together."""

from typing import Any

from attrs import define, field

from ksim.compute.graph import BatchDependent
from ksim.compute.kernels import Kernel
from ksim.flow.batch import Batch, Contexts
from ksim.oracles import Estimate, estimates
from ksim.specs.hardware import Gpu

#: Steps looked ahead at most.  Each time a look ahead was used up, the next is twice as far.
FURTHEST = 32


@define
class _View:
    """What was priced of one layer: how far it reached, and whose contexts it was for."""

    known: dict[Kernel, Estimate] = field(factory=dict)
    offsets: tuple[int, ...] = ()
    reach: int = 1


@define
class Outlook:
    """Asks an oracle about the attention of a batch, and of those that follow if it only goes on decoding."""

    oracle: Any
    gpu: Gpu
    _views: dict[BatchDependent, _View] = field(factory=dict, init=False)

    def ask(self, layer: BatchDependent, kernel: Kernel, batch: Batch) -> Estimate:
        """What the oracle says of *kernel*, which *layer* launches for *batch*."""
        view = self._views.setdefault(layer, _View())
        if kernel not in view.known:
            view.known = self._ahead(layer, kernel, batch, view)
        return view.known[kernel]

    def _ahead(self, layer: BatchDependent, kernel: Kernel, batch: Batch, view: _View) -> dict[Kernel, Estimate]:
        kernels: list[Kernel] = [kernel]
        if hasattr(self.oracle, "estimates") and not batch.chunks:
            same = batch.contexts.offsets is view.offsets
            view.reach = min(2 * view.reach, FURTHEST) if same else 1
            view.offsets = batch.contexts.offsets
            ahead = (layer.over(_later(batch, steps)) for steps in range(1, view.reach))
            kernels += [later for later in ahead if later is not None and later != kernel]
        return dict(zip(kernels, estimates(self.oracle, kernels, self.gpu), strict=True))


def _later(batch: Batch, steps: int) -> Batch:
    contexts = Contexts(batch.contexts.offsets, batch.contexts.shift + steps)
    return Batch(contexts, (), batch.samples, batch.tokens)
