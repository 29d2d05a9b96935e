"""What an oracle may be: seconds, an estimate, or many of them as a list or as columns; and what it may not answer."""

from math import nan
from typing import Any

import numpy as np
import pytest

from ksim.compute.graph import KernelSweep
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Gemm, Pointwise
from ksim.compute.kernels.mla import LatentAttention, LatentLayer
from ksim.flow.batch import Batch, Batches
from ksim.foundation.errors import ConfigError
from ksim.oracles import (
    Estimate,
    Estimates,
    adapted,
    bounds,
    compile_attention,
    estimate,
    estimates,
    least_seconds,
)
from ksim.oracles.efficiency.drawn import DrawnOracle, ScaledOracle
from ksim.oracles.learned import Learned
from ksim.oracles.measured import Measured
from ksim.oracles.roofline import Roofline
from ksim.oracles.waves import Waves
from ksim.scenario.hardware import gpu_of

H200 = gpu_of("h200")
LAYER = AttentionLayer(32, 8, 128)
ROWS = np.array([3, 64, 900])
BATCHES = [Batch.of((1, 5)), Batch.of((300, 6), (1, 900)), Batch.of(*[(1, 2000)] * 40)]
KERNELS = [Gemm(rows, 64, 64) for rows in ROWS.tolist()]
#: Sweeps, each with its kernels one by one.
SWEEPS: dict[str, Any] = {
    "gemm": (KernelSweep.of(Gemm(ROWS, 64, 64)), KERNELS),
    "pointwise": (
        KernelSweep(Pointwise("rope", 8.0 * np.tile(ROWS, 2), 4.0, 1.0, np.tile(ROWS, 2)), ("rope", "kv_write"),
                    np.repeat([0, 1], 3)),
        [Pointwise(family, 8.0 * rows, 4.0, 1.0, rows) for family in ("rope", "kv_write") for rows in ROWS.tolist()]),
    "attention": (LAYER.sweep(Batches.of(BATCHES)), [LAYER.over(batch) for batch in BATCHES]),
}


class Seconds:
    def seconds(self, kernel, gpu):
        return 2 * max(bounds(kernel, gpu))


class One:
    def estimate(self, kernel, gpu):
        return Estimate(2 * max(bounds(kernel, gpu)), "launch", source="one")


class AsList:
    """Knows of no sweeps: it loops over kernels."""

    def estimates(self, kernels, gpu):
        return [One().estimate(kernel, gpu) for kernel in kernels]


class AsColumns:
    def estimates(self, kernels, gpu):
        return Estimates.of(AsList().estimates(kernels, gpu))


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_is_its_kernels_one_by_one(kind):
    sweep, kernels = SWEEPS[kind]
    assert len(sweep) == len(kernels)
    assert [*sweep] == [sweep[row] for row in range(len(sweep))] == kernels
    assert (sweep[1:], sweep[-1]) == (kernels[1:], kernels[-1])
    assert sweep.shapes() == list(map(str, kernels))
    assert least_seconds(sweep, H200).tolist() == least_seconds(kernels, H200).tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("oracle", [Seconds(), One(), AsList(), AsColumns()], ids=lambda oracle: type(oracle).__name__)
@pytest.mark.parametrize("kind", SWEEPS)
def test_whatever_an_oracle_offers_it_prices_lists_and_sweeps(oracle, kind):
    sweep, kernels = SWEEPS[kind]
    columns = estimates(oracle, sweep, H200)
    assert isinstance(columns, Estimates)
    assert columns.seconds.tolist() == (2 * least_seconds(kernels, H200)).tolist()
    assert [*columns] == [*estimates(oracle, kernels, H200)] == [estimate(oracle, kernel, H200) for kernel in kernels]
    assert {answer.source for answer in columns} == {"Seconds" if isinstance(oracle, Seconds) else "one"}


@pytest.mark.parametrize("oracle", [Measured(), Learned(), Waves(), Roofline(),
                                    ScaledOracle(Measured(), {"gemm/bf16": {"1": 2.0, "64": 3.0}, "rope/": 1.5,
                                                             "attention/": 0.5})],
                         ids=lambda oracle: type(oracle).__name__)
@pytest.mark.parametrize("kind", SWEEPS)
def test_shipped_oracles_price_a_sweep_as_its_kernels(oracle, kind):
    sweep, kernels = SWEEPS[kind]
    columns, answers = estimates(oracle, sweep, H200), estimates(oracle, kernels, H200)
    for name in ("seconds", "waves", "idle", "roofline_ratio", "low", "high"):
        assert getattr(columns, name) == pytest.approx(getattr(answers, name), rel=1e-12, nan_ok=True)
    for one, other in zip(columns, answers, strict=True):
        assert (one.bound, one.launch, one.source, one.extrapolated) == (
            other.bound, other.launch, other.source, other.extrapolated)


def test_an_oracle_is_wrapped_only_where_it_has_no_estimates():
    oracle = AsList()
    assert adapted(oracle) is oracle
    wrapped = adapted(Seconds())
    assert wrapped is not None and adapted(wrapped) is wrapped
    assert [*estimates(wrapped, KERNELS, H200)] == [*estimates(Seconds(), KERNELS, H200)]


class Slower(Measured):
    """Answers otherwise than its parent, which it does not tell of attention that is compiled."""

    def estimates(self, kernels, gpu):
        return [Estimate(2 * answer.seconds, answer.bound) for answer in super().estimates(kernels, gpu)]


class SlowerOne(Measured):
    def estimate(self, kernel, gpu):
        return Estimate(2 * super().estimate(kernel, gpu).seconds, "memory")


class SlowerSeconds(Measured):
    def seconds(self, kernel, gpu):
        return 2 * super().seconds(kernel, gpu)


@pytest.mark.parametrize("kind", [Slower, SlowerOne, SlowerSeconds])
def test_methods_that_a_subclass_overrides_are_used(kind):
    """Whichever method that is, and its parent's compiled attention does not."""
    kernel = LAYER.over(BATCHES[1])
    assert compile_attention(Measured(), LAYER, H200) is not None
    assert compile_attention(kind(), LAYER, H200) is None
    for asked in (kernel, KERNELS[1]):
        assert estimate(kind(), asked, H200).seconds == 2 * estimate(Measured(), asked, H200).seconds


def test_compiled_attention_prices_as_estimates_do():
    sweep, kernels = SWEEPS["attention"]
    for oracle in (Measured(), Learned(), ScaledOracle(Measured(), {"gemm/bf16": 2.0})):
        compiled = compile_attention(oracle, LAYER, H200)
        prices = [compiled.price(LAYER.counts(batch)) for batch in BATCHES]
        seconds = least_seconds(kernels, H200)
        assert np.maximum([price[0] for price in prices], seconds) == pytest.approx(
            estimates(oracle, sweep, H200).seconds, rel=1e-12)
    assert compile_attention(ScaledOracle(Measured(), {"attention/": 2.0}), LAYER, H200) is None
    assert compile_attention(Waves(), LAYER, H200) is None


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_compiled_latent_attention_prices_as_estimates_do(form):
    """One kernel as its like in a list, to the last bit; compiled, but for the order of sums."""
    layer = LatentLayer(LatentAttention(form, 16, 128, 64, 128, 512))
    batches = [Batch.of((1, 900), (1, 60_000), (300, 20)), Batch.of(*[(1, 70)] * 200, (2, 0), (4000, 90_000))]
    sweep = layer.sweep(Batches.of(batches))
    kernels = [layer.over(batch) for batch in batches]
    assert [*sweep] == kernels and [*map(str, sweep)] == [*map(str, kernels)]
    for oracle in (Measured(), Learned(), ScaledOracle(Measured(), {"gemm/bf16": 2.0})):
        found, compiled = estimates(oracle, sweep, H200), compile_attention(oracle, layer, H200)
        assert [*found] == [*estimates(oracle, kernels, H200)]
        counts = [np.asarray(column, dtype=np.float64) for column in layer.columns(Batches.of(batches))]
        for seconds in ([compiled.price(layer.counts(batch))[0] for batch in batches], compiled.columns(counts)[0]):
            assert np.maximum(seconds, least_seconds(kernels, H200)) == pytest.approx(found.seconds, rel=1e-12)
    assert compile_attention(DrawnOracle(Measured(), 1), layer, H200) is None


class Answers:
    def __init__(self, *answers):
        self.answers = answers

    def estimates(self, kernels, gpu):
        return self.answers[0] if len(self.answers) == 1 else [*self.answers]


GOOD = Estimate(1e-6, "memory")


@pytest.mark.parametrize("bad, said", [
    (Estimate(nan, "memory"), "says nan s for gemm 64x64x64 bf16; expected a positive number"),
    (Estimate(0, "memory"), "says 0 s for gemm 64x64x64 bf16; expected a positive number"),
    (Estimate(-1e-6, "memory"), "says -1e-06 s for gemm 64x64x64 bf16; expected a positive number"),
    (Estimate(float("inf"), "memory"), "says inf s for gemm 64x64x64 bf16; expected a positive number"),
    (Estimate("fast", "memory"), "says fast s for gemm 64x64x64 bf16; expected a positive number"),
    (Estimate(None, "memory"), "says None s for gemm 64x64x64 bf16; expected a positive number"),
    (1e-6, "estimates 1e-06, which is no ksim.oracles.Estimate"),
    (Estimate(1e-6, "luck"), "says that 'luck' limits gemm 64x64x64 bf16; expected one of compute, memory, launch"),
])
def test_a_bad_answer_names_the_oracle_and_the_kernel(bad, said):
    for asked in (KERNELS, SWEEPS["gemm"][0]):
        with pytest.raises(ConfigError) as error:
            estimates(Answers(GOOD, bad, GOOD), asked, H200)
        assert str(error.value) == f"oracle Answers: {said}"


@pytest.mark.parametrize("seconds", [nan, 0.0, -1e-6])
def test_columns_that_are_no_times_name_the_oracle_and_the_kernel(seconds):
    columns = Estimates.of([GOOD, Estimate(seconds, "memory"), GOOD])
    with pytest.raises(ConfigError, match=rf"oracle Answers: says {seconds} s for gemm 64x64x64 bf16; expected a pos"):
        estimates(Answers(columns), SWEEPS["gemm"][0], H200)
    with pytest.raises(ConfigError, match=rf"oracle Answers: says {seconds} s for attention 2 seqs, 301 queries"):
        estimates(Answers(columns), SWEEPS["attention"][0], H200)


def test_too_few_estimates_are_refused():
    with pytest.raises(ConfigError, match="oracle Answers: gives 2 estimates of 3 kernels"):
        estimates(Answers(GOOD, GOOD), KERNELS, H200)


def test_an_oracle_without_any_method_is_refused():
    with pytest.raises(ConfigError, match="oracle object: has neither seconds"):
        estimates(object(), KERNELS, H200)
