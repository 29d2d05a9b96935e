"""Adapters that synthetic requests and traces ask for."""

from collections import Counter
from itertools import islice

import pytest

from ksim.flow.request import Request
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.workload.replay import Replay
from ksim.workload.synthetic import Adapters, Synthetic


def asked(adapters, count, seed=0):
    load = structure(Synthetic, {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 9},
                                 "output": {"kind": "fixed", "value": 2}, "count": count, "adapters": adapters})
    return [request.adapter for request in islice(load.requests(seed), count)]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_popularity_follows_zipfs_law(exponent):
    found, total = Counter(asked({"count": 6, "exponent": exponent}, 20_000)), 20_000
    weights = [(place + 1) ** -exponent for place in range(6)]
    for place, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(found[f"adapter-{place}"] / total - share) < 4 * (share * (1 - share) / total) ** 0.5


def test_a_share_of_requests_asks_for_the_base_model():
    found = Counter(asked({"count": 2, "base": 0.25, "name": "tenant"}, 10_000))
    assert found[""] / 10_000 == pytest.approx(0.25, abs=0.02)
    assert found.keys() == {"", "tenant-0", "tenant-1"}


def test_the_same_seed_asks_for_the_same_adapters():
    assert asked({"count": 5}, 50, seed=3) == asked({"count": 5}, 50, seed=3)


def test_shares_add_up():
    assert sum(Adapters(50, 1.3, 0.2).shares) == pytest.approx(1)


def test_a_trace_names_adapters_in_a_column_or_in_another_one_that_is_named(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival,prompt,output,adapter\n0,5,2,sql\n1,5,2,\n", encoding="utf-8")
    assert [request.adapter for request in Replay(trace).requests(0)] == ["sql", ""]
    trace.write_text("arrival,prompt,output,model\n0,5,2,sql\n1,5,2,code\n", encoding="utf-8")
    assert [request.adapter for request in Replay(trace).requests(0)] == ["", ""]
    assert [request.adapter for request in Replay(trace, columns={"adapter": "model"}).requests(0)] == ["sql", "code"]


def test_names_of_chunks_begin_with_the_adapter_for_caches():
    request = Request(0, 0.0, 40, 2, ("x", "y"), 16)
    assert request.keyed is request
    assert Request(0, 0.0, 40, 2, ("x", "y"), 16, adapter="a").keyed.chunks == (("a", "x"), "y")
    assert Request(0, 0.0, 40, 2, adapter="a").keyed.chunks == ()


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 3, "exponent": -1.0}, {"count": 3, "base": 1.5}])
def test_what_no_load_can_have_is_refused(wrong):
    with pytest.raises(ConfigError, match="adapters"):
        structure(Synthetic, {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 9},
                              "output": {"kind": "fixed", "value": 2}, "adapters": wrong})
