"""The kernels of many batches are those of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.batch_kernels import BoundLaunch, bind, missing
from ksim.flow.batch import Batch, Batches
from tests.cost.timers import timer

sequences = st.tuples(st.sampled_from([1, 1, 3, 700]), st.sampled_from([0, 1, 900]))
several = st.lists(st.builds(lambda some, width: Batch.of(*some, width=width), st.lists(sequences, min_size=1),
                             st.sampled_from([1, 3])), min_size=1, max_size=8)


@pytest.mark.parametrize("model", ["deepseek-v3", "glm-5", "qwen3.5-397b-a17b"])
@given(batches=several)
def test_kernels_of_many_batches_are_those_of_each(model, batches):
    launches = timer(model, 8)._plans.batch_launches
    for launch in launches:
        bound = BoundLaunch.of(launch.layer, Batches.of(batches))
        own = [launch.layer.over(batch) for batch in batches]
        assert [which < 0 for which in bound.which.tolist()] == [kernel is None for kernel in own]
        if bound.kernels:
            assert [bound.kernels[which] if which >= 0 else None for which in bound.which.tolist()] == own


@given(batches=several)
def test_what_a_batch_lacks_are_the_launches_that_have_nothing_for_it(batches):
    bound = bind(timer("deepseek-v3", 8)._plans.batch_launches, Batches.of(batches))
    for batch, lacking in zip(batches, missing(bound, len(batches)), strict=True):
        assert {op.label for op in lacking} == {launch.label for launch in bound if launch.layer.over(batch) is None}
