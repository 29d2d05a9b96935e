"""Where each router sends a request."""

import pytest

from ksim.cluster.routers.by_load import LeastOutstanding, PrefixAware, Random, RoundRobin
from ksim.cluster.routers.lora_affinity import LoraAffinity
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.cluster.views import View

ONE = Request(0, 0.0, prompt=1000, output=10)


def chosen(router, *states: tuple[int, int]) -> int:
    """Which of engines with so many requests outstanding, and so many tokens cached."""
    return router.choose(ONE, [View(number, *state) for number, state in enumerate(states)], 0.0).number


def test_round_robin_goes_around():
    router = RoundRobin()
    assert [chosen(router, (9, 0), (0, 0), (5, 0)) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_random_sends_as_many_everywhere_by_its_seed():
    router, same, other = Random(), Random(), Random(seed=1)
    answers = [chosen(router, (9, 0), (0, 0), (5, 0)) for _ in range(600)]
    assert all(160 < answers.count(number) < 240 for number in range(3))
    assert answers == [chosen(same, (0, 0), (0, 0), (0, 0)) for _ in range(600)]
    assert answers != [chosen(other, (0, 0), (0, 0), (0, 0)) for _ in range(600)]


@pytest.mark.parametrize("outstanding, number", [((3, 1, 2), 1), ((2, 1, 1), 1), ((0, 0, 0), 0)])
def test_least_outstanding_takes_the_first_of_the_least_busy(outstanding, number):
    assert chosen(LeastOutstanding(), *((requests, 0) for requests in outstanding)) == number


def test_prefix_aware_prefers_the_engine_that_has_the_prefix():
    assert chosen(PrefixAware(), (0, 0), (0, 512), (0, 128)) == 1


def test_prefix_aware_weighs_load_against_it():
    """Two more requests outweigh 512 cached tokens at 257 each, and do not at 255."""
    states = (0, 0), (2, 512)
    assert chosen(PrefixAware(load_tokens=257), *states) == 0
    assert chosen(PrefixAware(load_tokens=255), *states) == 1


def test_prefix_aware_without_prefixes_is_least_outstanding():
    assert chosen(PrefixAware(), (2, 0), (1, 0), (1, 0)) == 1


def test_the_weight_of_load_is_an_option():
    assert plugin("cluster.routers", Choice("prefix_aware", {"load_tokens": 10})) == PrefixAware(10)
    with pytest.raises(ConfigError, match="'load_tokens' must be >= 0"):
        plugin("cluster.routers", Choice("prefix_aware", {"load_tokens": -1}))


def with_adapter(router: LoraAffinity, *states: tuple[int, str]) -> int:
    """Which of engines with so many requests outstanding, and the adapter in that place."""
    views = [View(number, busy, 0, adapters={"a": place}) for number, (busy, place) in enumerate(states)]
    return router.choose(Request(0, 0.0, 10, 5, adapter="a"), views, 0.0).number


def test_lora_affinity_prefers_the_gpu_then_host_memory_then_the_least_busy():
    router = LoraAffinity()
    assert with_adapter(router, (0, "disk"), (3, "memory"), (5, "gpu")) == 2
    assert with_adapter(router, (0, "disk"), (3, "memory"), (0, "disk")) == 1
    assert with_adapter(router, (2, "disk"), (1, "disk"), (3, "disk")) == 1
    assert with_adapter(router, (4, "gpu"), (1, "gpu")) == 1


def test_lora_affinity_leaves_an_engine_that_has_much_more_to_do():
    assert with_adapter(LoraAffinity(slack=4), (5, "gpu"), (0, "disk")) == 1
    assert with_adapter(LoraAffinity(slack=5), (5, "gpu"), (0, "disk")) == 0


def test_lora_affinity_sends_requests_for_the_base_model_to_the_least_busy():
    assert chosen(LoraAffinity(), (3, 0), (1, 0), (2, 0)) == 1
