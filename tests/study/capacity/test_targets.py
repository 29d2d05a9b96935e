"""Targets, as they are typed."""

import pytest

from ksim.foundation.errors import KsimError
from ksim.study.capacity.targets import Target


def test_a_percentile_is_a_share_of_requests():
    target = Target.parse("ttft:p99.9:1s")
    assert (target.metric, target.share, target.limit) == ("ttft", 0.999, 1.0)
    assert target.allowed == pytest.approx(0.001)
    assert (target.requests, target.least_requests) == (10_000, 2000)
    assert str(target) == "ttft:p99.9:1s"


def test_a_median_is_one_and_a_mean_is_not():
    assert Target.parse("tpot:median:50ms").share == 0.5
    mean = Target.parse("e2el:mean:10 s")
    assert mean.share is None
    assert mean.allowed == 10.0


def test_the_same_target_typed_otherwise_is_equal():
    assert Target.parse("ttft:p99:1s") == Target.parse("ttft:p99:1000ms")
    assert {Target.parse("ttft:p99:1s"): 1}[Target("ttft", "p99", 1.0)] == 1


@pytest.mark.parametrize(("text", "problem"), [
    ("ttft:p99", "expected METRIC:STATISTIC:LIMIT"), ("tfft:p99:1s", "did you mean 'ttft'"),
    ("ttft:p100:1s", "no statistic"), ("ttft:p0:1s", "no statistic"), ("ttft:worst:1s", "no statistic"),
    ("ttft:p99:1", "has no unit"), ("ttft:p99:0s", "more than 0 s"), ("ttft:p99:1W", "expected s"),
    ("ttft:p99:-1s", "more than 0 s"), ("ttft:p99:1m2", "is not a quantity such as '200 ms' or '1 s'"),
])
def test_what_is_no_target(text, problem):
    with pytest.raises(KsimError, match=problem):
        Target.parse(text)
