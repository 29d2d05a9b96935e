"""Estimates as columns: there and back, and never below what the peaks allow."""

import numpy as np
import pytest

from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.flow.batch import Batch
from ksim.flow.batches import Batches
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles import Estimate
from ksim.oracles.efficiency.answers import Estimates, columns, several
from ksim.oracles.efficiency.growing import Line, Sized
from ksim.oracles.efficiency.several import alike
from ksim.oracles.waves import Waves
from tests.cost.toys import TOY

SEVERAL = [Estimate(1e-6, "launch", 0.5, 0.5, "whole", "measured", 2.0, 5e-7, 2e-6),
           Estimate(2e-6, "compute", 1.5, 0.5, "split", "measured, extrapolated", 2.0, 1e-6, 3e-6, True),
           Estimate(3e-6, "memory", source="waves")]


def test_columns_give_back_the_estimates_that_they_were_made_of():
    found = Estimates.of(SEVERAL).each()
    assert found == SEVERAL
    for name in ("eta", "low", "high"):
        assert [getattr(each, name) for each in found] == pytest.approx([getattr(each, name) for each in SEVERAL],
                                                                       nan_ok=True)


def test_no_end_of_an_interval_is_below_what_the_peaks_allow():
    found = Estimates.of(SEVERAL).at_least(np.array([1e-7, 2.5e-6, 1e-6]))
    assert found.seconds.tolist() == [1e-6, 2.5e-6, 3e-6]
    assert found.low.tolist() == [5e-7, 2.5e-6, 1e-6]
    assert found.high[:2].tolist() == [2e-6, 3e-6]


def test_an_answer_that_is_no_time_names_the_oracle_and_the_kernel():
    class Broken:
        def columns(self, kernel, gpu):
            return Estimates.of([SEVERAL[0], Estimate(float("nan"), "memory")])

    kernel = AttentionLayer(8, 8, 64).columns(Batches.of([Batch.of((1, 5)), Batch.of((1, 6))]))
    with pytest.raises(ConfigError, match=r"oracle Broken: says nan s for attention 1 seqs, 1 queries, 7 keys"):
        columns(Broken(), kernel, TOY)


class ByWaves:
    """Says as columns what `Waves` says of products, and nothing of other kernels."""

    def __init__(self):
        self.asked = []

    def several(self, kernels, gpu):
        self.asked.append(len(kernels))
        return Estimates.of(self.estimates(kernels.each(), gpu)) if isinstance(kernels.kernel, Gemm) else None

    def estimates(self, kernels, gpu):
        self.asked.append(len(kernels))
        return [Waves().estimate(kernel, gpu) for kernel in kernels]


def test_what_has_no_columns_is_asked_about_one_by_one():
    lines = [Sized("a", Gemm, (Line(1, 0), 64, 64, DType.BF16, DType.BF16)),
             Sized("b", Pointwise, ("rope", Line(8.0, 0.0), 4.0, 1.0, Line(1, 0), 0.0))]
    asked = [group.at(np.array([3, 900])) for group in alike(enumerate(lines))]
    oracle = ByWaves()
    found = several(oracle, asked, TOY)
    assert oracle.asked == [2, 2, 2, 2]  # products as columns, which this one works out one by one, and the others
    assert [each.each() for each in found] == [each.each() for each in several(Waves(), asked, TOY)] == [
        [Waves().estimate(line.at(tokens).kernel, TOY) for tokens in (3, 900)] for line in lines]


def test_columns_that_are_no_times_name_the_kernel():
    class Broken:
        def several(self, kernels, gpu):
            return Estimates.of([SEVERAL[0], Estimate(0.0, "memory")])

    (asked,) = alike([(0, Sized("a", Gemm, (Line(1, 0), 64, 64, DType.BF16, DType.BF16)))])
    with pytest.raises(ConfigError, match=r"oracle Broken: says 0.0 s for gemm 9x64x64 bf16"):
        several(Broken(), [asked.at(np.array([3, 9]))], TOY)
