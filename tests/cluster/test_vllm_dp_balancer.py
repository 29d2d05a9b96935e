"""vLLM's balancer decides as its source says (vllm/v1/engine/core_client.py, DPLBAsyncMPClient)."""

from typing import Any

import pytest

from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.cluster.views import View


def router(**options: Any) -> Any:
    return plugin("cluster.routers", Choice("vllm_dp_balancer", options))


def chosen(made: Any, now: float, *states: tuple[int, int]) -> int:
    """Which of engines with so many requests waiting and running."""
    engines = [View(number, 0, 0, waiting=waiting, running=running) for number, (waiting, running) in enumerate(states)]
    return made.choose(Request(0, 0.0, 10, 10), engines, now).number


@pytest.mark.parametrize("states, number", [
    (((1, 0), (0, 3)), 1), (((1, 0), (0, 5)), 0), (((1, 0), (0, 4)), 0), (((0, 4), (1, 0)), 0), (((0, 0), (0, 0)), 0)])
def test_a_request_that_waits_counts_four_times(states, number):
    assert chosen(router(rule="waiting"), 0.0, *states) == number


def test_what_it_sent_since_the_last_statistics_waits():
    made = router(rule="waiting")
    assert [chosen(made, 0.05, (0, 0), (0, 3), (0, 4)) for _ in range(4)] == [0, 1, 0, 2]  # 0 3 4, 4 3 4, 4 7 4, 8 7 4
    assert chosen(made, 0.09, (9, 9), (9, 9), (0, 0)) == 1  # 8 7 8: the statistics are older than that
    assert chosen(made, 0.1, (1, 0), (0, 0), (0, 0)) == 1
    assert chosen(made, 0.1, (1, 0), (0, 0), (0, 0)) == 2


def test_other_clients_send_as_much():
    made = router(rule="waiting", client_count=3)
    assert [chosen(made, 0.0, (0, 0), (0, 11)) for _ in range(2)] == [0, 1]


def test_the_rule_of_vllm_0_33_goes_by_requests_in_flight_and_the_kv_cache():
    """max(in flight, waiting + running) + waiting * 6 * max(0, KV use - 0.5), from the next engine on each time."""
    def load(waiting: int, running: int, kv: float, flying: int) -> float:
        made = router()
        made.choose(Request(0, 0.0, 10, 10), [View(0, flying, 0, waiting=waiting, running=running, kv_usage=kv)], 0.0)
        return -made.scores[0]

    assert load(2, 3, 0.4, 1) == 5 and load(2, 3, 0.4, 9) == 9
    assert load(2, 3, 1.0, 1) == 5 + 2 * 3.0 and load(0, 3, 1.0, 1) == 3


def test_equals_take_turns_by_the_rule_of_vllm_0_33():
    made = router()
    assert [chosen(made, number * 0.1, (0, 1), (0, 1), (0, 1)) for number in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize("options", [{"rule": "least"}, {"interval": 0.0}, {"client_count": 0}])
def test_what_it_refuses(options):
    with pytest.raises(ConfigError, match="vllm_dp_balancer"):
        router(**options)
