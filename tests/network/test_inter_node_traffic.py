"""Collectives that cross nodes, beside flows: what they send over which links, and how much later each ends."""

import pytest
import simpy
from attrs import evolve

from ksim.compute.graph import Collective
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.network.network import CollectiveTraffic, InterNodeTraffic
from ksim.network.routes import Machines
from ksim.scenario.hardware import gpu_of
from ksim.specs.hardware import Leaf
from tests.cost.toys import ALL, network

SIZE, NIC = 2.0**30, 50e9 * 0.95


def collective_traffic(nodes: int = 2, *, leaf: Leaf | None = None, first: int = 0) -> CollectiveTraffic:
    wired = network("hgx-h200", *ALL, nodes=nodes)
    wired.system = evolve(wired.system, leaf=leaf)
    before = [Machines(evolve(wired.system, nodes=1, gpus_per_node=first), gpu_of("h200"))] if first else []
    return CollectiveTraffic(wired, Links.of([*before, Machines(wired.system, gpu_of("h200"))]), first)


def carried(traffic: InterNodeTraffic, links: Links) -> dict[str, float]:
    return {links.names[link]: weight * traffic.size
            for link, weight in zip(traffic.path, traffic.weights, strict=True)}


def test_a_collective_within_a_node_crosses_nothing():
    assert collective_traffic().of(Collective("all_reduce", SIZE, "tensor"), range(8)) is None
    assert collective_traffic().of(Collective("all_reduce", 0.0, "tensor"), range(16)) is None


@pytest.mark.parametrize("first", [0, 4])
def test_what_leaves_a_node_leaves_by_the_nics_of_all_its_gpus_in_the_group(first):
    """A ring of 16 gathers: in each of 15 rounds a sixteenth leaves each node, by 8 NICs."""
    wide = collective_traffic(first=first)
    traffic = wide.of(Collective("all_gather", SIZE, "tensor"), range(16))
    each = 15 / 16 * SIZE / 8
    assert carried(traffic, wide.links) == pytest.approx(
        {f"gpu{first + gpu} NIC {way}": each for gpu in range(16) for way in ("out", "in")})
    assert traffic.seconds == wide.network.seconds(Collective("all_gather", SIZE, "tensor"), range(16))
    assert traffic.cap < NIC


def test_a_message_to_the_next_stage_passes_one_nic_each():
    one = collective_traffic()
    traffic = one.of(Collective("send", SIZE, "pipeline"), (3, 11))
    assert carried(traffic, one.links) == {"gpu3 NIC out": SIZE, "gpu11 NIC in": SIZE}


def test_leaf_switches_carry_what_leaves_their_nodes():
    """All-to-all among 32 in 4 nodes, two at a switch: each GPU sends 24 of 32 pieces to other nodes, 16 beyond the
    switch."""
    wide = collective_traffic(4, leaf=Leaf(2))
    traffic = wide.of(Collective("all_to_all", SIZE, "expert"), range(32))
    assert carried(traffic, wide.links) == pytest.approx({
        **{f"gpu{gpu} NIC {way}": 24 / 32 * SIZE for gpu in range(32) for way in ("out", "in")},
        **{f"leaf{leaf} spine {way}": 16 * 16 / 32 * SIZE for leaf in range(2) for way in ("out", "in")}})


@pytest.mark.parametrize("size", [2.0**10, 2.0**20, SIZE])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [range(16), (0, 1, 8, 9), (0, 1, 2, 8)])
def test_alone_a_collective_takes_as_long_as_it_is_priced(size, kind, ranks):
    wide, collective = collective_traffic(), Collective(kind, size, "tensor")
    env = simpy.Environment()
    traffic = wide.of(collective, ranks)
    flow = Flows(env, wide.links).start(traffic.size, traffic.path, traffic.cap, traffic.weights)
    env.run()
    assert flow.ended == pytest.approx(wide.network.seconds(collective, ranks), rel=1e-12)
    assert traffic.late(flow) == 0.0


def test_late_on_the_clock_rounding_makes_no_collective_later():
    wide = collective_traffic()
    env = simpy.Environment(initial_time=1e6)
    traffic = wide.of(Collective("all_reduce", 1000.0, "tensor"), range(16))
    flows = Flows(env, wide.links)
    for _ in range(50):
        flow = flows.start(traffic.size, traffic.path, traffic.cap, traffic.weights)
        env.run(flow.done)
        assert traffic.late(flow) == 0.0


def test_a_flow_beside_a_collective_slows_both():
    """A send at nearly 47.5 GB/s, and KV of half its size over the same NIC: both have half of the NIC until the KV
    has arrived, which is when half of the send has; the other half goes on at its own rate."""
    wide, env = collective_traffic(), simpy.Environment()
    traffic = wide.of(Collective("send", SIZE, "pipeline"), (0, 8))
    flows = Flows(env, wide.links)
    send = flows.start(traffic.size, traffic.path, traffic.cap, traffic.weights)
    kv = flows.start(SIZE / 2, wide.links.path("gpu0", "gpu9"))
    env.run()
    assert kv.ended == pytest.approx(SIZE / 2 / (NIC / 2), rel=1e-12)
    assert kv.alone == pytest.approx(SIZE / 2 / NIC, rel=1e-12)
    assert traffic.late(send) == pytest.approx(SIZE / NIC - traffic.seconds / 2, rel=1e-12)


def test_a_flow_beside_an_all_reduce_of_two_nodes_slows_both():
    """The ring sends at its cap c by each NIC.  Beside KV by one of them, it has half of that NIC, and so half of each.
    """
    wide, env = collective_traffic(), simpy.Environment()
    traffic = wide.of(Collective("all_reduce", SIZE, "tensor"), range(16))
    flows = Flows(env, wide.links)
    ring = flows.start(traffic.size, traffic.path, traffic.cap, traffic.weights)
    kv = flows.start(10 * traffic.size, wide.links.path("gpu5", "gpu9"))
    env.run()
    assert traffic.cap > NIC / 2
    assert ring.ended == pytest.approx(traffic.size / (NIC / 2), rel=1e-12)
    assert traffic.late(ring) == pytest.approx(traffic.size / (NIC / 2) - traffic.seconds, rel=1e-12)
    assert kv.ended == pytest.approx(kv.alone + traffic.size / NIC, rel=1e-12)


def test_a_step_is_one_flow():
    """Collectives one after the other: bytes and seconds add up, whatever the links of each."""
    wide = collective_traffic()
    reduce, send = (wide.of(Collective(*collective), ranks) for collective, ranks in (
        (("all_reduce", SIZE, "tensor"), range(16)), (("send", SIZE, "pipeline"), (0, 8))))
    twice = InterNodeTraffic.together([reduce, reduce])
    assert (twice.path, twice.weights) == (reduce.path, reduce.weights)
    assert (twice.size, twice.seconds, twice.cap) == pytest.approx((2 * reduce.size, 2 * reduce.seconds, reduce.cap))
    both = InterNodeTraffic.together([reduce, send])
    busy = carried(reduce, wide.links)["gpu0 NIC out"] + SIZE
    assert (both.size, both.seconds) == pytest.approx((busy, reduce.seconds + send.seconds))
    assert carried(both, wide.links)["gpu1 NIC out"] == pytest.approx(reduce.size)
