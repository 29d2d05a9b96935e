"""A batch on its way through an engine whose steps are SimPy events."""

from attrs import define

from ksim.engine.stages import InFlightBatch
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost


@define(eq=False)
class Work:
    """The batch of step `index` on its way through the host and the stages.

    When it was scheduled, so many jobs waited and ran, and so many KV blocks were used.
    """

    index: int
    scheduled: float
    batch: Batch
    waiting: int
    running: int
    blocks: int
    step_costs: tuple[StepCost, ...] = ()
    prepared: float = 0.0
    in_flight: InFlightBatch | None = None
