"""Whatever the flows and links: nothing beyond a link's capacity, nobody slower than need be, and no byte lost."""

from collections import defaultdict
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.network.flows import Demand, fair_rates
from tests.network.networks import Sent, run
from tests.properties import examples

#: Room for rounding.
NEARLY = 1e-9
CAPACITIES = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0, 100.0]), min_size=1, max_size=8)
AFTER = st.sampled_from([inf, inf, 0.0, 0.5, 2.0])
CAPS = st.sampled_from([inf, inf, 0.25, 1.0, 2.5])


@st.composite
def networks(draw, cancelled: bool = False) -> tuple[list[float], list[Sent]]:
    """Links, and flows over some of them."""
    capacities = draw(CAPACITIES)
    paths = st.lists(st.integers(0, len(capacities) - 1), min_size=1, max_size=4, unique=True)
    sent = []
    for path in draw(st.lists(paths, min_size=1, max_size=12)):
        weights = draw(st.none() | st.lists(st.sampled_from([0.3, 1.0, 4.0]), min_size=len(path), max_size=len(path)))
        sent.append(Sent(draw(st.integers(0, 12)) / 2, draw(st.sampled_from([0.1, 1.0, 3.0, 20.0])), path, draw(CAPS),
                         weights, draw(AFTER) if cancelled else inf))
    return capacities, sent


def demands(sent: list[Sent]) -> list[Demand]:
    return [Demand(flow.path, flow.cap, flow.weights) for flow in sent]


def used(asked: list[Demand], rates: list[float]) -> dict[int, float]:
    """Bytes/s of each link."""
    found: dict[int, float] = defaultdict(float)
    for demand, rate in zip(asked, rates, strict=True):
        for link, weight in demand.uses:
            found[link] += weight * rate
    return found


@given(networks())
@examples(400)
def test_no_link_carries_more_than_its_capacity_and_rates_are_max_min_fair(network):
    capacities, sent = network
    asked = demands(sent)
    rates = fair_rates(asked, capacities)
    use = used(asked, rates)
    assert all(rate <= capacities[link] * (1 + NEARLY) for link, rate in use.items())
    fastest: dict[int, float] = defaultdict(float)
    for demand, rate in zip(asked, rates, strict=True):
        for link in demand.path:
            fastest[link] = max(fastest[link], rate)
    for demand, rate in zip(asked, rates, strict=True):
        assert rate == demand.cap or any(
            use[link] >= capacities[link] * (1 - NEARLY) and rate >= fastest[link] * (1 - NEARLY)
            for link in demand.path)


@given(networks(cancelled=True))
@examples(200)
def test_rates_at_each_start_and_end_are_those_worked_out_from_scratch(network):
    capacities, sent = network
    for _, rates in run(capacities, *sent).rates:
        scratch = fair_rates([flow.demand for flow in rates], capacities)
        assert list(rates.values()) == pytest.approx(scratch, rel=1e-12)


@given(networks(cancelled=True))
@examples(200)
def test_bytes_arrive_as_they_were_sent(network):
    """The rates of a flow over time add up to its size, less what is left of it where it is cancelled; and what links
    tell of to what passed them."""
    capacities, sent = network
    done = run(capacities, *sent)
    arrived = defaultdict(float)
    for (begin, rates), (end, _) in pairwise(done.rates):
        for flow, rate in rates.items():
            arrived[flow] += rate * (end - begin)
    assert [arrived[flow] for flow in done.all] == pytest.approx([flow.size - flow.left for flow in done.all],
                                                              rel=NEARLY, abs=NEARLY)
    passed, expected = defaultdict(float), defaultdict(float)
    since: dict[int, tuple[float, float]] = {}
    for time, link, rate in done.used:
        begin, before = since.get(link, (time, 0.0))
        passed[link] += before * (time - begin)
        since[link] = time, rate
        assert rate <= capacities[link] * (1 + NEARLY)
        assert rate != before, "nothing changed"
    assert not any(rate for _, rate in since.values()), "nothing flows in the end"
    for flow in done.all:
        for link, weight in flow.uses:
            expected[link] += weight * (flow.size - flow.left)
    assert [passed[link] for link in expected] == pytest.approx([*expected.values()], rel=NEARLY, abs=NEARLY)


@given(networks())
@examples(100)
def test_one_flow_at_a_time_takes_its_size_over_the_least_capacity(network):
    capacities, sent = network
    for flow in sent:
        (alone,) = run(capacities, flow).all
        weights = flow.weights or [1.0] * len(flow.path)
        least = min(flow.cap, *(capacities[link] / weight for link, weight in zip(flow.path, weights, strict=True)))
        assert alone.ended - alone.began == pytest.approx(flow.size / least, rel=1e-12)
        assert alone.alone == flow.size / least


@given(networks())
@examples(100)
def test_no_flow_is_faster_than_alone(network):
    assert all(flow.ended - flow.began >= flow.alone * (1 - NEARLY) for flow in run(network[0], *network[1]).all)


@given(sent=st.lists(st.builds(Sent, st.integers(0, 12).map(float), st.sampled_from([0.1, 1.0, 3.0, 20.0]),
                               st.just([0]), CAPS), min_size=1, max_size=8),
       other=st.builds(Sent, st.integers(0, 12).map(float), st.sampled_from([0.1, 1.0, 3.0, 20.0]), st.just([0]), CAPS))
@examples(200)
def test_on_one_link_no_flow_ends_sooner_because_another_was_added(sent, other):
    before, after = ([flow.ended for flow in ordered(run([2.0], *flows), flows)] for flows in (sent, [*sent, other]))
    assert all(late >= soon * (1 - NEARLY) for soon, late in zip(before, after[:-1], strict=True))


def ordered(done, flows: list[Sent]):
    """The flows of *done* in the order of *flows*; those of one time start in that order."""
    by_start = sorted(range(len(flows)), key=lambda place: flows[place].time)
    found = dict(zip(by_start, done.all, strict=True))
    return [found[place] for place in range(len(flows))]
