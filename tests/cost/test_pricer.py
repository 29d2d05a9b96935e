"""Spans of launches, one by one and together."""

import numpy as np
import pytest
from attrs import evolve

from ksim.compute.graph import Collective, KernelSweep
from ksim.compute.kernels.basic import Gemm, Pointwise
from ksim.cost.pricer import Pricer
from ksim.oracles import Estimate, least_seconds
from ksim.scenario.hardware import gpu_of
from tests.cost.toys import network

GEMM, NORM = Gemm(512, 1024, 2048), Pointwise("rms_norm", 1e6, 1e6, 5e5, 512)
SUM = Collective("all_reduce", 2.0**20, "tensor")


class Counted:
    """A microsecond a kernel; `asked` says how many were asked about at once."""

    def __init__(self):
        self.asked = []

    def seconds(self, kernel, gpu):
        self.asked.append(kernel)
        return 1e-6 * len(self.asked)


def pricer(oracle) -> Pricer:
    return Pricer(gpu_of("h200"), oracle, network("hgx-h200", "ring"), {"tensor": range(4)})


def test_launches_are_priced_in_their_order_and_kernels_alone_by_the_oracle():
    oracle = Counted()
    spans = pricer(oracle).kernels([("norm", NORM), ("sum", SUM), ("gemm", GEMM)])
    assert oracle.asked == [NORM, GEMM]
    assert [(span.label, span.shape) for span in spans] == [("norm", str(NORM)), ("sum", str(SUM)), ("gemm", str(GEMM))]
    assert [spans[0].seconds, spans[2].seconds] == [1e-6, 2e-6]


class Hot:
    """Was measured at a clock lower than the boost clock: so many times what the peak allows."""

    def __init__(self, times, source="measured"):
        self.times, self.source = times, source

    def estimates(self, kernels, gpu):
        return [Estimate(self.times * seconds, "compute", source=self.source)
                for seconds in least_seconds(kernels, gpu).tolist()]


def test_products_measured_when_hot_are_at_the_boost_clock_no_faster_than_the_peak():
    gpu, rows = gpu_of("h200"), KernelSweep.of(evolve(GEMM, m=np.array([588, 589])))
    least, cool = least_seconds(rows, gpu), 0.93  # their weights are small (h200.toml)
    for times in (1.0, 1.02, 2.0):
        swept = pricer(Hot(times)).sweep(["gemm"], rows).costs.seconds
        assert swept == pytest.approx(np.maximum(times * cool, 1.0) * least)
        assert [pricer(Hot(times)).kernel("gemm", row).seconds for row in rows] == pytest.approx(swept, abs=0)


@pytest.mark.parametrize("source", ["measured", "measured, extrapolated", "learned", "learned, extrapolated"])
def test_products_with_large_weights_were_measured_hotter_within_the_data_and_beyond(source):
    """Prices of 14B models and larger lie beyond the sweep: they jumped by 7 % where the weights leave it."""
    rows = KernelSweep.of(evolve(GEMM, m=np.array([4096, 4096]), n=np.array([6144, 34816]), k=np.array([4096, 5120])))
    hot = 2.0 * least_seconds(rows, gpu_of("h200"))
    swept = pricer(Hot(2.0, source)).sweep(["gemm"], rows).costs.seconds
    assert swept / hot == pytest.approx([0.93, 0.85])
    assert [pricer(Hot(2.0, source)).kernel("gemm", row).seconds for row in rows] == pytest.approx(swept, abs=0)


def test_what_physics_alone_says_is_at_the_boost_clock():
    assert pricer(Hot(2.0, "waves")).kernel("gemm", GEMM).seconds == 2.0 * least_seconds([GEMM], gpu_of("h200"))[0]


def test_one_by_one_they_cost_the_same():
    one = pricer(Counted())
    assert [one.kernel("gemm", GEMM)] == pricer(Counted()).kernels([("gemm", GEMM)])
    assert [one.collective("sum", SUM)] == one.kernels([("sum", SUM)])


def test_a_ring_of_four_sends_three_quarters_twice():
    assert pricer(Counted()).sent(SUM) == pytest.approx(1.5 * SUM.bytes)
