"""Steps as columns say what the steps say."""

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.flow.costs import ClockScaling
from ksim.flow.events import StepBlock, Stepped
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

GEMM = KernelCost.of("a", "gemm", 1e-3, joules=2.0, bound="compute")
BLOCKS = (PricedBlock.of((GEMM,), 3), PricedBlock.of((0,), 2))


def _step(index: int, stages: int) -> Stepped:
    attention = KernelCost.of("b", "attention", index * 1e-4, low=0.0, high=1.0)
    step_costs = [StepCost.of(BLOCKS, [attention]) for _ in range(stages)]
    batch = Batch(Contexts((3, 4), index), ((5, 6),), 2, 7)
    return Stepped(9.0 + index, 1, index, 1.0, 2.0, 3.0, 4.0, 5.0, batch, 6, 7, 8, tuple(step_costs),
                   tuple(ClockScaling(1.0 + stage, 0.5, 0.4, 1e9) for stage in range(stages)))


def test_columns_give_back_the_steps_that_they_were_made_of():
    for stages in (1, 2):
        steps = [_step(index, stages) for index in range(4, 7)]
        stretch = StepBlock.of(steps)
        assert len(stretch) == 3
        assert list(stretch.steps()) == steps


def test_offsets_know_their_sum_and_their_most():
    assert (Offsets((3, 1)).sum, Offsets((3, 1)).most, Offsets().most) == (4, 3, 0)
    assert (Contexts((3, 1), 2).total, Contexts((3, 1), 2).longest, Contexts().longest) == (8, 5, 0)
