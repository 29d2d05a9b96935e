"""Steps priced together are the steps priced one by one."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.pricer import Overlap
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import NAMES, Costs
from ksim.flow.steps import StepCost
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.oracles.measured import Measured
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.cost.timers import MODELS, ORACLES, timer
from tests.properties import examples
from tests.scenario.tables import TABLE

sequences = st.one_of(st.tuples(st.just(1), st.integers(0, 8000)), st.tuples(st.integers(2, 700), st.integers(0, 7000)))
batches = st.builds(lambda several, share: Batch.of(*several, samples=round(share * len(several))),
                    st.lists(sequences, min_size=1, max_size=6), st.floats(0, 1))
windows = st.lists(batches, min_size=1, max_size=12)


def numbers(costs: Costs) -> dict[str, float]:
    return {name: getattr(costs, name) for name in NAMES}


def assert_alike(found: StepCost, expected: StepCost) -> None:
    """To the last digits of numbers, which sums in another order differ in."""
    assert (found.launch, found.launch_seconds) == (expected.launch, expected.launch_seconds)
    assert numbers(found.costs) == pytest.approx(numbers(expected.costs), rel=1e-11, abs=1e-30, nan_ok=True)
    for one, other in zip(found.counted(), expected.counted(), strict=True):
        assert one[1] == other[1]
        assert numbers(one[0].costs) == pytest.approx(numbers(other[0].costs), rel=1e-9, abs=1e-25, nan_ok=True)
        assert evolve(one[0], costs=other[0].costs) == other[0]


def check(pricer: StepTimer, several: list[Batch]) -> None:
    steps = pricer.price(several)
    assert len(steps) == len(several)
    for row, batch in enumerate(several):
        assert_alike(steps[row], pricer.step_cost(batch))


@pytest.mark.parametrize("model, tensor", MODELS)
@given(several=windows)
@examples(8)
def test_steps_together_are_steps_apart(model, tensor, several):
    check(timer(model, tensor), several)


@pytest.mark.parametrize("oracle", [*ORACLES, "own"])
@pytest.mark.parametrize("gpu", ["h200", "a100-80g", "b200"])
@given(several=windows)
@examples(4)
def test_whoever_prices_them(gpu, oracle, several):
    check(timer("gpt-oss-20b" if oracle == "own" else "llama-3.1-8b", 1, oracle, gpu), several)


@given(several=windows)
@examples(5)
def test_with_products_beside_their_sums(several):
    check(evolve(timer("gemma-2-2b", 2), overlap=Overlap(4, 16)), several)


@pytest.mark.parametrize("stage", [0, 1])
def test_on_every_stage(stage):
    timers = Deployment.of(Scenario.of({**TABLE, "model": "gemma-2-2b", "serve": {
        "pipeline_parallel_size": 2, "max_model_len": 8192}})).timers()
    check(timers[stage], [Batch.of((1, 700), (61, 200)), Batch.of((600, 0)), Batch.of((1, 9))])


class Asked:
    """Prices by another oracle, and counts how often it is asked."""

    def __init__(self, oracle):
        self.oracle, self.questions, self.shapes = oracle, 0, 0

    def estimates(self, kernels, gpu):
        self.questions += 1
        self.shapes += len(kernels)
        return self.oracle.estimates(kernels, gpu)


@pytest.mark.parametrize("steps", [1, 3])
def test_all_that_is_new_is_asked_about_in_a_few_questions(steps):
    """One for each kind of kernel, however many steps; of tokens and sequences known before, attention alone is new."""
    oracle = Asked(plugin("oracles", Choice("measured")))
    pricer = evolve(timer("gemma-2-2b", 1), oracle=oracle)
    pricer.price([Batch.of(*[(tokens, 0)] * count) for tokens, count in ((600, 1), (350, 2), (200, 4))[:steps]])
    assert oracle.questions == 6
    before = oracle.shapes
    pricer.price([Batch.of(*[(tokens, 9)] * count) for tokens, count in ((600, 1), (350, 2), (200, 4))[:steps]])
    assert (oracle.questions, oracle.shapes - before) == (8, 2 * steps)  # layers with windows and without


def test_where_many_numbers_of_tokens_were_asked_for_one_by_one_those_around_the_next_are_priced_along():
    oracle = Asked(plugin("oracles", Choice("measured")))
    pricer = evolve(timer("llama-3.1-8b", 1), oracle=oracle)

    def questions(tokens):
        before = oracle.questions
        pricer.step_cost(Batch.of((tokens, 0)))
        return oracle.questions - before

    plan_and_attention = [questions(tokens) for tokens in range(1024, 1280, 8)]
    assert plan_and_attention == [5] + [3] * 31  # products and what moves memory, and at first what stays the same
    assert [questions(tokens) for tokens in (1273, 1279, 1025, 1300)] == [1, 1, 3, 3]


def test_tokens_that_are_padded_to_the_sizes_of_graphs_have_none_around_them():
    oracle = Asked(plugin("oracles", Choice("measured")))
    pricer = evolve(timer("llama-3.1-8b", 1), oracle=oracle)
    priced = []
    for tokens in range(8, 257, 8):
        before = oracle.shapes
        pricer.step_cost(Batch.of((tokens, 0)))
        priced.append(oracle.shapes - before)
    assert priced[-1] == priced[1]


def test_an_oracle_that_changes_the_answers_of_another_prices_steps_together_too():
    class Slower(Measured):
        def estimates(self, kernels, gpu):
            return [evolve(each, seconds=2 * each.seconds) for each in super().estimates(kernels, gpu)]

    check(evolve(timer("llama-3.1-8b", 1), oracle=Slower()), [Batch.of((1, 700)), Batch.of((1, 9), (600, 0))])


def test_steps_of_one_plan_have_the_same_blocks():
    one, other, third = timer("llama-3.1-8b", 1).price([Batch.of((1, 5)), Batch.of((1, 900)), Batch.of((2, 0))]).blocks
    assert one is other and one is not third


def test_steps_add_up_to_their_kernels():
    several = [Batch.of((1, 700), (61, 200)), Batch.of((1, 9)), Batch.of((600, 0))]
    steps = timer("deepseek-v3", 8).price(several)
    for row in range(len(several)):
        step = steps[row]
        total = StepCost.of(step.blocks, step.batch_kernels)
        for name in ("seconds", "joules", "flops", "bytes", "sm_action_joules", "sm_active_joules"):
            assert getattr(step.costs, name) == pytest.approx(getattr(total.costs, name), rel=1e-12)


def test_prices_do_not_depend_on_how_many_are_asked_about():
    """Not even where a thousand points are interpolated in bulk."""
    pricer = timer("llama-3.1-8b", 1)
    several = [Batch.of((1, 10 * step)) for step in range(300)]
    alone = [pricer.price([each]).costs.seconds[0] for each in several]
    assert pricer.price(several).costs.seconds == pytest.approx(alone, rel=1e-12)
