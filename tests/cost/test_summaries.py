"""The summary of a step is what it costs, as far as the clock looks at it."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.pricer import Overlap
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch, Contexts
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.drawn import ScaledOracle
from ksim.oracles.efficiency.models import Constant
from ksim.oracles.efficiency.profiled import Profile, save, shipped
from ksim.oracles.learned import Learned
from ksim.oracles.measured import Measured
from tests.cost.timers import MODELS, ORACLES, timer
from tests.properties import examples

GPUS = ["h200", "h100", "a100-80g", "b200", "b300", "l40s"]
PACES = [AT_BOOST, ClockScaling(1.4, 0.7, 0.6)]

#: As many sequences and tokens as measured, and far beyond.
decodes = st.lists(st.integers(0, 60_000), max_size=40).flatmap(
    lambda several: st.sampled_from([1, 8]).map(lambda times: [(1, context) for context in several] * times))
chunks = st.lists(st.tuples(st.integers(2, 4000), st.integers(0, 60_000)), max_size=3)
batches = st.tuples(decodes, chunks).filter(any).map(lambda both: Batch.of(*both[0], *both[1]))


def check(pricer: StepTimer, batch: Batch, compiled: bool = True) -> None:
    found, expected = pricer.summarize(batch), pricer.step_cost(batch)
    (plan,) = pricer._whole([batch])
    assert (pricer._summaries.of_batch(plan, batch) is not None) == compiled
    assert_alike(found, expected)


def assert_alike(found, expected):
    assert found.launch_seconds == pytest.approx(expected.launch_seconds, rel=1e-12)
    for pace in PACES:
        assert found.seconds_at(pace) == pytest.approx(expected.seconds_at(pace), rel=1e-12)
        assert found.joules_at(pace) == pytest.approx(expected.joules_at(pace), rel=1e-12)


@pytest.mark.parametrize("oracle", ["measured", "learned"])
@pytest.mark.parametrize("gpu", GPUS)
@given(batch=batches)
@examples(25)
def test_a_summary_is_that_of_what_the_step_costs(gpu, oracle, batch):
    check(timer("llama-3.1-8b", 1, oracle, gpu), batch)


@pytest.mark.parametrize("model, tensor", [("gpt-oss-20b", 1), ("gemma-2-2b", 2), ("qwen3-30b-a3b", 4)])
@given(batch=batches, gpu=st.sampled_from(["h200", "a100-80g", "b200"]))
@examples(15)
def test_of_models_with_windows_and_experts(model, tensor, gpu, batch):
    check(timer(model, tensor, "measured", gpu), batch)


@pytest.mark.parametrize("model, tensor", MODELS)
@given(batch=batches)
@examples(5)
def test_of_any_model(model, tensor, batch):
    pricer = timer(model, tensor)
    assert_alike(pricer.summarize(batch), pricer.step_cost(batch))


@given(batch=batches)
@examples(15)
def test_of_latent_attention_which_some_batches_have_nothing_for(batch):
    check(timer("deepseek-v3", 8), batch)


@pytest.mark.parametrize("oracle", [*ORACLES, "own"])
@given(batch=batches)
@examples(5)
def test_whoever_prices_it(oracle, batch):
    check(timer("llama-3.1-8b", 1, oracle), batch, compiled=oracle in ("measured", "learned"))


@given(batch=batches)
@examples(5)
def test_with_products_beside_their_sums(batch):
    check(evolve(timer("gemma-2-2b", 2), overlap=Overlap(4, 16)), batch)


def test_kernels_of_another_library():
    pricer = timer("llama-3.1-8b", 1)
    batch = Batch.of((1, 900), (300, 20))
    check(evolve(pricer, oracle=ScaledOracle(pricer.oracle, {"gemm/bf16": 1.5})), batch)
    check(evolve(pricer, oracle=ScaledOracle(pricer.oracle, {"attention/": 1.5})), batch, compiled=False)


def test_none_is_below_what_the_peaks_allow(tmp_path):
    profile = Profile.load(shipped("learned"))
    hasty = {name: evolve(profile[name], model=Constant(-5.0)) if name.startswith("attention") else profile[name]
             for name in profile}
    save(tmp_path / "hasty.npz", "", "none", hasty)
    pricer = evolve(timer("llama-3.1-8b", 1), oracle=Learned(tmp_path / "hasty.npz"))
    check(pricer, Batch.of((2000, 20)))


def test_an_oracle_that_changes_the_answers_of_another_is_asked():
    class Slower(Measured):
        def estimates(self, kernels, gpu):
            return [evolve(each, seconds=2 * each.seconds) for each in super().estimates(kernels, gpu)]

    check(evolve(timer("llama-3.1-8b", 1), oracle=Slower()), Batch.of((1, 900)), compiled=False)


def test_an_oracle_that_says_nonsense_is_named():
    class Nonsense(Measured):
        def compile_attention(self, layer, gpu):
            return self

        def price(self, kernel):
            return float("nan"), False, True

    with pytest.raises(ConfigError, match="Nonsense"):
        evolve(timer("llama-3.1-8b", 1), oracle=Nonsense()).summarize(Batch.of((1, 900)))


@given(batch=batches, turns=st.integers(1, 20))
@examples(15)
def test_kernels_that_were_measured_at_a_lower_clock(batch, turns):
    pricer = timer("llama-3.1-8b", 1, "measured", "a100-80g")
    cool = evolve(pricer.gpu.power.clocks, measured={"attention": 0.7})
    pricer = evolve(pricer, gpu=evolve(pricer.gpu, power=evolve(pricer.gpu.power, clocks=cool)))
    check(pricer, batch)
    check_run(pricer, [context for _, context in batch.chunks] or [1], turns)


@pytest.mark.parametrize("model, oracle, gpu", [
    ("llama-3.1-8b", "measured", "h200"), ("llama-3.1-8b", "measured", "b200"), ("gpt-oss-20b", "learned", "h200"),
    ("llama-3.1-8b", "waves", "h200"), ("deepseek-v3", "measured", "h200")])
@given(contexts=st.lists(st.integers(0, 100_000), min_size=1, max_size=8), times=st.sampled_from([1, 20]),
       turns=st.integers(1, 40))
@examples(8)
def test_summaries_of_steps_that_go_on_decoding(model, oracle, gpu, contexts, times, turns):
    check_run(timer(model, 8 if model == "deepseek-v3" else 1, oracle, gpu), contexts * times, turns)


def check_run(pricer: StepTimer, contexts: list[int], turns: int) -> None:
    count = len(contexts)
    several = [Batch(Contexts(contexts, shift), (), count, count) for shift in range(turns)]
    found = pricer.summarize(several)
    assert len(found) == turns
    for summary, batch in zip(found, several, strict=True):
        assert_alike(summary, pricer.step_cost(batch))
        assert pricer.least_seconds(several[0]) <= summary.seconds * (1 + 1e-12)  # whatever else is cached


def test_summaries_of_steps_of_several_plans():
    pricer = timer("llama-3.1-8b", 1)
    several = [Batch.of((count, 100), (1, 30)) for count in range(1, 30)]
    for summary, batch in zip(pricer.summarize(several), several, strict=True):
        assert_alike(summary, pricer.step_cost(batch))
