"""Collectives hop by hop: as long as worked out where links are their own, longer for those who share them."""

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.foundation.config import Choice
from ksim.network.exchange import Exchange
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.network.network import CollectiveTraffic
from ksim.network.routes import Machines, Route
from ksim.scenario.hardware import gpu_of, network_of, system_of
from tests.properties import examples

SYSTEM, GPU = system_of("h200", "hgx-h200", 2), gpu_of("h200")
#: Algorithms, and the kinds that they are played for.
ALGORITHMS = {"ring": ("all_reduce", "all_gather", "reduce_scatter"), "two_shot": ("all_reduce",),
              "nvls": ("all_reduce",), "pairwise": ("all_to_all",), "direct": ("all_reduce",)}


def routes(name: str, kind: str, ranks: int) -> list[Route]:
    return network_of(SYSTEM, [Choice(name)], GPU)._routes_of(name, kind, tuple(range(ranks)))


@given(what=st.sampled_from([(name, kind) for name, kinds in ALGORITHMS.items() for kind in kinds]),
       ranks=st.integers(2, 16), size=st.floats(1, 1e9))
@examples(120)
def test_ranks_that_pass_pieces_take_as_long_as_is_worked_out(what, ranks, size):
    for route in routes(what[0], what[1], ranks):
        env = simpy.Environment()
        env.run(Exchange(env, route, size).play(range(ranks)))
        assert env.now == pytest.approx(route.seconds(size), rel=1e-9)


def shared(ranks: int, size: float, others: float) -> tuple[float, float]:
    """Seconds of an all-gather over two nodes beside a transfer of *others* bytes from node 0 to 1, and alone."""
    network = network_of(SYSTEM, [Choice("ring")], GPU)
    links, env = Links.of([Machines(SYSTEM, GPU)]), simpy.Environment()
    flows, traffic = Flows(env, links), CollectiveTraffic(network, links)
    gpus = [*range(8 - ranks // 2, 8 + ranks // 2)]
    route = network.route(Collective("all_gather", size, "tensor"), gpus)

    def send(hop):
        over = traffic.hop(hop, gpus)
        if over is None:
            return env.timeout(size * hop.per_byte)
        return flows.start(size * hop.passes, over[0], hop.passes / hop.per_byte, over[1]).done

    if others:
        flows.start(others, links.nic_path(gpus[0], gpus[-1]))
    env.run(Exchange(env, route, size, send).play(gpus))
    return env.now, route.seconds(size)


@given(ranks=st.sampled_from([2, 4, 6]), size=st.floats(1e4, 1e8))
@examples(30)
def test_hops_between_nodes_that_are_alone_take_as_long_as_priced(ranks, size):
    taken, alone = shared(ranks, size, 0.0)
    assert taken == pytest.approx(alone, rel=1e-6)


def test_a_transfer_over_the_same_nic_makes_the_ring_wait():
    """Half of the NIC is left while both are there."""
    taken, alone = shared(2, 1e8, 1e9)
    assert 1.5 * alone < taken < 2.1 * alone
