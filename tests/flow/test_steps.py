"""Steps as columns say what each step says, and add up to their kernels."""

import pickle

import pytest
from attrs import evolve

from ksim.flow.steps import KernelCost, PricedBlock, StepColumns, StepCost

ONE = KernelCost.of("a", "attention", 1e-3, joules=2.0, flops=3.0, bytes=4.0, bound="compute", waves=5.0, idle=0.5,
                    shape="{}", launch="split", source="measured", roofline_ratio=1.5, low=8e-4, high=2e-3,
                    extrapolated=True, sm_action_joules=0.3, sm_active_joules=0.2)
OTHER = evolve(KernelCost.of("a", "attention", 2e-3, joules=1.0), launch="whole", shape="another")
BLOCKS = (PricedBlock.of((ONE, 1), 3), PricedBlock.of((0, 1), 2))
OTHERS = (PricedBlock.of((0,), 7),)
STEPS = [StepCost.of(BLOCKS, (ONE, OTHER)), StepCost.of(OTHERS, (OTHER,)), StepCost.of(BLOCKS, (OTHER, ONE))]


def test_a_block_gives_back_what_it_was_made_of():
    assert BLOCKS[0].launches == (ONE, 1)
    assert [kernel.label for kernel in STEPS[0]] == ["a"] * 10


def test_columns_give_back_the_steps_that_they_were_made_of():
    columns = StepColumns.of(STEPS)
    assert [columns[row] for row in range(3)] == STEPS
    assert [(kernels.repeat, kernels.rows.tolist()) for kernels in columns.batch_kernels] == [
        (2, [0, 2]), (7, [1]), (5, [0, 2])]


@pytest.mark.parametrize("name", ["seconds", "joules", "flops", "bytes", "sm_action_joules", "sm_active_joules"])
def test_steps_add_up_to_their_kernels(name):
    columns = StepColumns.of(STEPS)
    in_blocks = sum(block.repeat * getattr(launch.costs, name) for step in STEPS for block in step.blocks
                    for launch in block.launches if isinstance(launch, KernelCost))
    of_batches = sum(kernels.repeat * getattr(kernels.kernels.costs, name).sum() for kernels in columns.batch_kernels)
    assert getattr(columns.costs, name).sum() == pytest.approx(in_blocks + of_batches)


def test_a_wait_at_the_end_takes_as_long_as_it_says_and_steps_go_on_sharing_their_blocks():
    wait = KernelCost.of("wait", "wait", 0.5, low=0.5, high=0.5)
    one, other = (STEPS[row].followed_by(wait) for row in (0, 2))
    assert one.blocks is other.blocks
    assert list(one) == [*STEPS[0], wait]
    assert (one.seconds, one.low) == pytest.approx((STEPS[0].seconds + 0.5, STEPS[0].low + 0.5), nan_ok=True)


def test_pickled_steps_still_share_their_blocks():
    one, other, third = pickle.loads(pickle.dumps(StepColumns.of(STEPS))).blocks
    assert one is third and one is not other
