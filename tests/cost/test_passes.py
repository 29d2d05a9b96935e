"""Steps of several passes: they cost what their passes cost, however they are asked about."""

from functools import cache

import numpy as np
import pytest
from attrs import astuple
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.model import FurtherModel
from ksim.cost.step import Pass, Passes, StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import Costs, StepSummary
from ksim.flow.steps import StepCost
from tests.cost.timers import timer
from tests.properties import examples

BATCH = Batch.of((1, 700), (1, 5000), (61, 200), samples=2)
DECODES = Batch.of((1, 700), (1, 5000))
BATCHES = [BATCH, DECODES, Batch.of((1, 701), (1, 5001)), Batch.of((300, 0))]


def beside(prefix: str) -> StepTimer:
    target = timer("gemma-2-2b", 1)
    model = FurtherModel(target.model.name, target.model.decoder, prefix=prefix)
    return target.beside(model, target.shard, target.graphs)


def drafts(batch: Batch) -> list[Batch]:
    """The same again, and a token of each sequence."""
    return [batch, Batch.of(*[(1, 900)] * batch.sequences)]


@cache
def passes() -> Passes:
    """An encoder that only prompts need, the target, and a drafter."""
    encoder = Pass(beside("encoder."), lambda batch: [Batch.of((64, 0))] * len(batch.chunks), before=True)
    return Passes(timer("gemma-2-2b", 1), [encoder, Pass(beside("draft."), drafts)])


def one_by_one(batch: Batch) -> list[StepCost]:
    encoder, drafter = passes().others
    return [passes().main.step_cost(batch), *(each.timer.step_cost(own) for each in (encoder, drafter)
                                              for own in each.batches_of(batch))]


@pytest.mark.parametrize("batch", BATCHES)
def test_step_costs_what_its_passes_cost(batch: Batch) -> None:
    alone, step = one_by_one(batch), passes().step_cost(batch)
    assert step.costs == sum((each.costs for each in alone[1:]), alone[0].costs)
    assert step.launch_seconds == sum(each.launch_seconds for each in alone)
    assert sum((runs * kernel.costs for kernel, runs in step.counted()), Costs.of()).seconds == pytest.approx(
        step.seconds, rel=1e-12)


def test_kernels_come_pass_by_pass_and_copy_inputs_once() -> None:
    labels = [kernel.label for kernel in passes().step_cost(BATCH)]
    plain = [kernel.label for kernel in passes().main.step_cost(BATCH)]
    kinds = [label.partition(".")[0] for label in labels if label not in ("gaps", "inputs")]
    assert kinds[0] == "encoder" and kinds[-1] == "draft" and labels.count("inputs") == 1
    assert [label for label in labels if "." not in label and label != "gaps"] == [
        label for label in plain if label != "gaps"]
    launched = [(cost.label, runs) for _, cost, runs in passes().launches(BATCH)]
    assert sum(runs for _, runs in launched) == len([label for label in labels if label not in ("gaps", "inputs")])


@given(st.lists(st.sampled_from(BATCHES), min_size=1, max_size=30))
@examples(12)
def test_columns_and_summaries_are_those_of_single_steps(batches: list[Batch]) -> None:
    columns, summaries = passes().price(batches), passes().summarize(batches)
    for row, batch in enumerate(batches):
        step = passes().step_cost(batch)
        assert columns[row].blocks is step.blocks and columns[row].launch == step.launch
        assert [(each.label, str(each.shape), each.costs) for each in columns[row]] == [
            (each.label, str(each.shape), each.costs) for each in step]
        np.testing.assert_allclose(columns.costs.table[:, row], step.costs.table, rtol=1e-9)
        np.testing.assert_allclose(astuple(summaries[row]), astuple(passes().summarize(batch)), rtol=1e-9)
        assert astuple(summaries[row]) == pytest.approx(astuple(StepSummary.of(step.costs, step.launch_seconds)))


def test_without_other_passes_a_step_is_the_plain_one() -> None:
    plain = passes().main
    alone = Passes(plain, [Pass(beside("draft."), lambda batch: ())])
    assert alone.step_cost(BATCH) == plain.step_cost(BATCH)
    assert alone.price(BATCHES).blocks == plain.price(BATCHES).blocks
    assert astuple(alone.summarize(BATCH)) == astuple(plain.summarize(BATCH))
