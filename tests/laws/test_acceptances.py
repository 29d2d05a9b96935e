"""Every acceptance gives chances that can be drawn from, and what is drawn has these chances."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.scheduling.acceptances import DrawnSpeculation, uniform
from ksim.scheduling.acceptances.rates import ByPosition
from ksim.scheduling.job import Job
from tests.properties import examples

chances = st.floats(0, 1)
#: Options of each acceptance, which are refused where they are none.
OPTIONS: dict[str, Any] = {
    "geometric": st.fixed_dictionaries({"rate": chances}),
    "by_position": st.fixed_dictionaries({"rates_by_position": st.lists(chances, min_size=1, max_size=6).map(
        lambda rates: sorted(rates, reverse=True))}),
    "histogram": st.fixed_dictionaries({"counts": st.lists(st.integers(0, 9), min_size=2, max_size=8).filter(any)}),
    "by_request": st.fixed_dictionaries({"rate": chances}),
}


def job(number: int = 0, acceptance: float | None = None) -> Job:
    return Job.of(Request(number, 0.0, 10, 100, acceptance=acceptance), number, 16)


def speculation(acceptance: Any, k: int, seed: int = 0, **more: Any) -> DrawnSpeculation:
    return DrawnSpeculation(k=k, lookahead=k, drops_block=False, keys_ahead=False, input_slots=0,
                            acceptance=acceptance, seed=seed, **more)


def test_all_acceptances_have_options_here():
    assert sorted(OPTIONS) == catalog.names("scheduling.acceptances")


@pytest.mark.parametrize("name", catalog.names("scheduling.acceptances"))
@given(data=st.data(), k=st.integers(1, 7), own=st.none() | chances)
@examples(40)
def test_rates_fall_from_1_to_0_and_accepted_lengths_keep_within_the_draft(name, data, k, own):
    acceptance = plugin("scheduling.acceptances", Choice(name, data.draw(OPTIONS[name])))
    rates = [1.0, *acceptance.rates(k, job(acceptance=own).request), 0.0]
    assert len(rates) == k + 2 and all(before >= rate >= 0 for before, rate in pairwise(rates))
    drawn, one = speculation(acceptance, k), job(acceptance=own)
    for drafts in [*range(1, k + 1)] * 3:
        assert 0 <= drawn.accepted(one, drafts) <= drafts


@given(k=st.integers(1, 4), rates=st.lists(chances, min_size=4, max_size=4), seed=st.integers(0, 99))
@examples(12)
def test_a_length_comes_as_often_as_its_rates_say(k, rates, seed):
    rates = sorted(rates, reverse=True)[:k]
    drawn, one = speculation(ByPosition(tuple(rates)), k, seed), job(seed)
    lengths = np.array([drawn.accepted(one, k) for _ in range(2000)])
    for place, rate in enumerate(rates, 1):
        assert (lengths >= place).mean() == pytest.approx(rate, abs=4.5 * (rate * (1 - rate) / 2000) ** 0.5 + 1e-3)


def test_requests_have_streams_of_their_own():
    drawn = speculation(plugin("scheduling.acceptances", Choice("geometric", {"rate": 0.5})), 3)
    one, other = job(1), job(2)
    apart = [[drawn.accepted(each, 3) for _ in range(50)] for each in (one, other)]
    one, other = job(1), job(2)
    mixed = [[drawn.accepted(each, 3) for each in (one, other)] for _ in range(50)]
    assert [list(column) for column in zip(*mixed, strict=True)] == apart
    assert apart[0] != apart[1]


def test_numbers_are_spread_evenly():
    numbers = [uniform(seed, request, draw) for seed in range(4) for request in range(20) for draw in range(50)]
    counts = Counter(int(10 * number) for number in numbers)
    assert len({*numbers}) == 4000 and min(counts.values()) > 330 and max(counts.values()) < 470


def test_a_drafter_that_finds_nothing_proposes_nothing_or_is_rejected():
    everything = ByPosition((1.0, 1.0))
    sync, ahead = (speculation(everything, 2, match_rate=0.0, ahead=ahead) for ahead in (False, True))
    assert sync.proposed(job()) == 0
    assert ahead.accepted(job(), 2) == 0
    assert speculation(everything, 2, ahead=True).accepted(job(), 2) == 2


def test_rates_that_are_none_are_refused_by_name():
    class Rising:
        def rates(self, k: int, request: Request) -> list[float]:
            return [0.5, 0.6]

    with pytest.raises(ConfigError, match=r"Rising gives \[0.5, 0.6\] for request 7; expected 2 numbers in \[0, 1\]"):
        speculation(Rising(), 2).accepted(job(7), 2)


def test_a_request_without_an_acceptance_needs_one_for_all():
    with pytest.raises(ConfigError, match="request 3 of the trace has no acceptance"):
        plugin("scheduling.acceptances", Choice("by_request")).rates(2, job(3).request)
    assert plugin("scheduling.acceptances", Choice("by_request")).rates(2, job(3, 0.5).request) == [0.5, 0.25]
