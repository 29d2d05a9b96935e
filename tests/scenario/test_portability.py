"""Eta by family and GPU, and the zones that follow."""

from math import exp, isnan, log

import pytest

from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment
from ksim.scenario.portability import LARGE, WIDE, ZONES, FamilyEtas, kernel_points, moved_to, survey
from ksim.scenario.scenario import Scenario
from tests.scenario.tables import TABLE

DECODE = Batch.parse("8x256")


def scenario(**changes):
    return Scenario.of({**TABLE, "model": "llama-3.2-1b", **changes})


def test_points_are_the_kernels_of_the_step():
    deployment = Deployment.of(scenario(serve={"tensor_parallel_size": 2, "pipeline_parallel_size": 2}))
    found = kernel_points(deployment, DECODE)
    assert sum(point.seconds for point in found) == pytest.approx(
        sum(span.seconds for timer in deployment.timers() for span in timer.step_cost(DECODE) if span.shape))
    assert len({point.span for point in found}) == len(found)
    by_label = {point.span.label: point for point in found}
    qkv, reduce = by_label["qkv"], by_label["o_proj_all_reduce"]
    assert qkv.dtype is DType.BF16 and 0 < qkv.reached < 1
    assert qkv.memory == pytest.approx(qkv.span.bytes / deployment.gpu.bandwidth)
    assert reduce.reached == 0 and reduce.eta == reduce.span.roofline_ratio > 1


def test_an_oracle_without_eta_has_that_of_the_data_sheet():
    for point in kernel_points(Deployment.of(scenario(oracle={"name": "roofline", "memory": 0.5})), DECODE):
        assert isnan(point.span.roofline_ratio) and point.eta == pytest.approx(1 / point.reached)


def test_eta_of_a_family_is_weighted_by_time():
    found = survey({"h200": scenario()}, {"decode": DECODE})
    gemms = [point for point in kernel_points(Deployment.of(scenario()), DECODE) if point.span.family == "gemm"]
    seconds = sum(point.seconds for point in gemms)
    family = next(family for family in found.families if family.name == "gemm")
    assert family.etas["h200"] == pytest.approx(exp(sum(p.seconds * log(p.eta) for p in gemms) / seconds))
    assert (family.spread, family.zone) == (None, None)


def test_a_plain_roofline_is_safe_everywhere():
    """It reaches the same share of every GPU's peaks."""
    one = scenario(oracle={"name": "roofline", "memory": 0.8, "compute": 0.8})
    scenarios = {gpu: moved_to(one, gpu) for gpu in ("h200", "l4", "b200")}
    found = survey(scenarios, {"a": DECODE, "b": Batch.parse("", "512+0")})
    assert {family.step for family in found.families} == {"a", "b"}
    for family in found.families:
        assert family.eta == pytest.approx(1.25) and family.spread == pytest.approx(1) and family.zone.name == "safe"
    for step in ("a", "b"):
        assert sum(family.share for family in found.families if family.step == step) == pytest.approx(1)


def test_a_gpu_that_cannot_be_priced_is_named_with_its_reason():
    one = scenario(serve={"quantization": "mxfp4_mxfp8", "unquantized": []})
    found = survey({gpu: moved_to(one, gpu) for gpu in ("h200", "a100-80g")}, {"decode": DECODE})
    assert found.gpus == ("h200",) and "computes no fp8" in found.unpriced["a100-80g"]


@pytest.mark.parametrize(("etas", "zone"), [
    ((1.1, 1.2), "safe"), ((1.0, WIDE), "device-specific"), ((LARGE, LARGE), "portable"), ((3.0, 12.0), "danger"),
    ((0.5, 0.6), "safe"),
])
def test_families_fall_into_the_zone_of_their_eta_and_spread(etas, zone):
    assert FamilyEtas("", "", dict(enumerate(etas)), {}).zone.name == zone


def test_zones_cover_everything_once():
    for eta in (0.3, 1.0, LARGE, 1e3):
        for spread in (1.0, WIDE, 1e3):
            assert sum(z.eta[0] <= eta < z.eta[1] and z.spread[0] <= spread < z.spread[1] for z in ZONES) == 1
