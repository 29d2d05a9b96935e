"""Flows that share links: cases worked out by hand, and laws that hold for any."""

import pytest
import simpy
from attrs import frozen

from ksim.network.flows import Flows
from ksim.network.sharing import Demand, fair_rates

EXACT = 1e-12


@frozen
class Wires:
    """Links of which only the capacities are known."""

    capacities: tuple[float, ...]


def flows_on(*capacities: float) -> Flows:
    return Flows(simpy.Environment(), Wires(capacities))


@pytest.mark.parametrize("paths, capacities, rates", [
    ([[i, 8 + i % 2] for i in range(8)], [4.0] * 8 + [10.0, 6.0], [2.5, 1.5] * 4),  # incast of 8 into 2
    ([[0, 1, 2], [0], [1], [2]], [10.0, 6.0, 9.0], [3.0, 7.0, 3.0, 6.0]),  # a parking lot
    ([[0, 2], [1, 2]], [50.0, 50.0, 83.0], [41.5, 41.5]),  # PCIe both ways, whose lanes carry less together
    ([[0, 2], [0, 2], [1, 2]], [50.0, 50.0, 83.0], [25.0, 25.0, 33.0]),  # two out and one in
])
def test_rates_worked_out_by_hand(paths, capacities, rates):
    assert fair_rates([Demand(path) for path in paths], capacities) == pytest.approx(rates, rel=EXACT, abs=0)


def test_a_cap_leaves_the_rest_to_others():
    assert fair_rates([Demand([0], 2.0), Demand([0]), Demand([0])], [10.0]) == pytest.approx([2.0, 4.0, 4.0], rel=EXACT)


def test_a_flow_alone_takes_its_bytes_over_the_least_capacity():
    flows = flows_on(10.0, 4.0)
    flow = flows.start(20.0, [0, 1])
    flows._env.run(flow.done)
    assert flow.ended == flow.alone == pytest.approx(5.0, rel=EXACT)
