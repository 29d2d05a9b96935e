"""Flows that share links: cases worked out by hand."""

import pytest
import simpy

from benchmarks.counting import lines
from ksim.network.flows import Demand, Flows, fair_rates
from tests.network.networks import PlainLinks, Sent, Watched, run


def exactly(value):
    return pytest.approx(value, rel=1e-12, abs=0)


@pytest.mark.parametrize("paths, capacities, rates", [
    # Incast of 8 senders into 2 receivers, four each: the receivers' links are full.
    ([[sender, 8 + sender % 2] for sender in range(8)], [4.0] * 8 + [10.0, 6.0], [2.5, 1.5] * 4),
    # A parking lot: one over all three links, one over each.
    ([[0, 1, 2], [0], [1], [2]], [10.0, 6.0, 9.0], [3.0, 7.0, 3.0, 6.0]),
    # PCIe both ways, whose lanes carry less together; then two out and one in, where the way out is full first.
    ([[0, 2], [1, 2]], [50.0, 50.0, 83.4], [41.7, 41.7]),
    ([[0, 2], [0, 2], [1, 2]], [50.0, 50.0, 83.4], [25.0, 25.0, 33.4]),
    # What one link leaves is for the flows of another, in turn.
    ([[0], [0, 1], [1, 2], [2]], [2.0, 4.0, 12.0], [1.0, 1.0, 3.0, 9.0]),
])
def test_rates_worked_out_by_hand(paths, capacities, rates):
    assert fair_rates([Demand(path) for path in paths], capacities) == exactly(rates)


def test_a_cap_leaves_the_rest_to_others():
    demands = [Demand([0], 2.0), Demand([0]), Demand([0]), Demand([], 7.0), Demand([])]
    assert fair_rates(demands, [10.0]) == exactly([2.0, 4.0, 4.0, 7.0, float("inf")])


def test_weights_are_how_often_a_flow_passes_a_link():
    """A collective over four NICs, and their leaf switch, beside a flow over one NIC: the switch is full at 5 x 2."""
    collective = Demand([0, 1, 2, 3, 4], weights=[1, 1, 1, 1, 4])
    assert fair_rates([collective, Demand([0, 4])], [8.0, 8.0, 8.0, 8.0, 10.0]) == exactly([2.0, 2.0])
    assert fair_rates([collective, Demand([0, 4], 1.0)], [8.0, 8.0, 8.0, 8.0, 10.0]) == exactly([2.25, 1.0])


def test_a_flow_alone_takes_its_bytes_over_the_least_capacity():
    done = run([10.0, 4.0], Sent(1.0, 20.0, [0, 1]), Sent(7.0, 20.0, [0, 1], cap=2.0))
    assert done.seconds == exactly([5.0, 10.0])
    assert [flow.alone for flow in done.all] == done.seconds


def test_flows_share_from_the_start_of_one_to_the_end_of_another():
    """At 10 B/s: 30 bytes from 0 s; 10 bytes from 1 s, at 5 B/s until 3 s; the first has 10 left then."""
    done = run([10.0], Sent(0.0, 30.0, [0]), Sent(1.0, 10.0, [0]))
    assert [flow.ended for flow in done.all] == exactly([4.0, 3.0])
    assert done.used == [(0.0, 0, 10.0), (4.0, 0, 0.0)]  # full all the time
    assert done.all[0].alone == exactly(3.0)


def test_use_is_told_of_where_it_changes():
    """Two over the first link, which is full until the second has ended: one of them over the other link, too."""
    done = run([10.0, 4.0], Sent(0.0, 8.0, [0, 1]), Sent(1.0, 30.0, [0]))
    assert [flow.ended for flow in done.all] == exactly([2.0, 4.4])
    assert done.used == [(0.0, 0, 4.0), (0.0, 1, 4.0), (1.0, 0, 10.0), (2.0, 1, 0.0), (done.all[1].ended, 0, 0.0)]


def test_use_is_told_of_once_for_all_that_happens_at_a_time():
    """At 2 s one of two flows on the first link ends, and one starts that is alone on the other link."""
    done = run([10.0, 4.0], Sent(0.0, 10.0, [0]), Sent(0.0, 20.0, [0]), Sent(2.0, 4.0, [1]))
    assert [flow.ended for flow in done.all] == exactly([2.0, 3.0, 3.0])
    assert [(link, used) for time, link, used in done.used if time == 2.0] == [(1, 4.0)]


def test_those_that_end_together_end_at_one_time():
    done = run([3.0], *(Sent(0.5, 7.0, [0]) for _ in range(3)))
    assert {flow.ended for flow in done.all} == {7.5}


def test_a_flow_without_bytes_or_links_is_done_at_once():
    done = run([10.0], Sent(2.0, 0.0, [0]), Sent(2.0, 5.0, []), Sent(2.0, 5.0, [], cap=1.0))
    assert [flow.ended for flow in done.all] == exactly([2.0, 2.0, 7.0])


def test_a_flow_that_is_cancelled_leaves_its_links_and_never_arrives():
    watched = Watched([10.0], [Sent(0.0, 100.0, [0]), Sent(0.0, 100.0, [0])])
    watched.env.run(until=4.0)
    first, second = watched.all
    watched.flows.cancel(first)
    watched.flows.cancel(first)
    watched.run()
    assert (first.ended, first.left, first.done.triggered) == (4.0, 80.0, False)
    assert (second.ended, second.left) == exactly((12.0, 0.0))
    assert watched.used[-1] == (12.0, 0, 0.0)


@pytest.mark.parametrize("size, cap", [(-1.0, 1.0), (float("inf"), 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, -1.0)])
def test_sizes_and_caps_that_no_flow_has(size, cap):
    with pytest.raises(ValueError, match="no flow has"):
        Flows(simpy.Environment(), PlainLinks([1.0])).start(size, [0], cap)


def test_no_timer_is_left_when_the_last_flow_has_ended():
    """The first would end at 100 s; the second ends at 2 s, which is worked out once the first is cancelled."""
    watched = Watched([1.0], [Sent(0.0, 10.0, [0]), *(Sent(0.1 * i, 1.0, [0]) for i in range(30))])
    fired = []
    wake = watched.flows._wake
    watched.flows._wake = lambda event: (fired.append(watched.env.now), wake(event))
    watched.run()
    assert watched.env.now == exactly(40.0)
    assert len(fired) <= 62  # at most one for each start and each end


def test_flows_elsewhere_are_not_looked_at():
    """Neither those of other links, nor those of a link that all of them together cannot fill."""
    watched = Watched([1.0] * 50 + [60.0], [Sent(0.0, 100.0, [link, 50]) for link in range(50)])
    watched.env.run(until=1.0)
    watched.flows.start(1.0, [7, 50])
    assert [flow.path[0] for flow in watched.flows._joined()] == [7, 7]


@pytest.mark.parametrize("sharing", [0, 3])
def test_a_start_and_an_end_take_as_many_lines_beside_a_thousand_flows_elsewhere(sharing):
    def counted(elsewhere: int) -> int:
        watched = Watched([10.0] * 50, [*(Sent(0.0, 1e9, [1 + place % 49]) for place in range(elsewhere)),
                                        *(Sent(0.0, 1e9, [0]) for _ in range(sharing))])
        watched.env.run(until=1.0)
        return lines(lambda: watched.env.run(watched.flows.start(20.0, [0]).done))

    assert counted(1000) == counted(0)
