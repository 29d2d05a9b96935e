"""Systems as graphs, and what messages over them take, counted by hand."""

from itertools import pairwise

import networkx as nx
import pytest
from attrs import frozen

from ksim.compute.graph import Collective
from ksim.cost.collectives import Transfer
from ksim.cost.network import Network, fabric
from ksim.cost.protocols import NCCL, PEER, Protocol
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import Link, System
from tests.cost.toys import network, system

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
LL, LL128, SIMPLE = NCCL


@pytest.mark.parametrize("name, nodes, points, edges", [
    ("hgx-h200", 1, 8 + 1, 2 * 8),  # GPUs and their switch
    ("pcie-l40s", 1, 8 + 2, 2 * (8 + 1)),  # GPUs and two sockets, which are joined
    ("gb200-nvl72", 1, 72 + 1, 2 * 72),
    ("hgx-h200", 2, 2 * (8 + 1 + 8) + 1, 2 * 2 * (8 + 8 + 8)),  # each GPU's NIC, and the network that all NICs share
    ("pcie-l40s", 3, 3 * (8 + 2 + 8) + 1, 2 * 3 * (8 + 1 + 8 + 8)),
])
def test_points_and_edges_of_a_system(name, nodes, points, edges):
    graph = fabric(system(name, nodes))
    assert (len(graph.nodes), len(graph.edges)) == (points, edges)


def bandwidth(name: str, source: int, target: int, nodes: int = 1) -> float:
    """Bytes/s of the narrowest link on the way."""
    graph = fabric(system(name, nodes))
    return min(graph.edges[edge]["bandwidth"] for edge in pairwise(nx.shortest_path(graph, source, target)))


@pytest.mark.parametrize("name, source, target, nodes, bytes_per_second", [
    ("hgx-h200", 0, 7, 1, 450e9 * 0.824),
    ("gb200-nvl72", 0, 71, 1, 900e9 * 0.802),
    ("pcie-l40s", 0, 3, 1, 32e9 * 0.63),  # one socket
    ("pcie-l40s", 3, 4, 1, 32e9 * 0.63),  # two of them, whose 22 GB/s are wider than PCIe
    ("hgx-h200", 0, 8, 2, 50e9 * 0.95),  # the NICs of two nodes
    ("hgx-h200", 8, 15, 2, 450e9 * 0.824),
])
def test_the_narrowest_link_between_two_gpus(name, source, target, nodes, bytes_per_second):
    assert bandwidth(name, source, target, nodes) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("protocol, size", [(LL, 64 * KIB), (LL128, 8 * MIB), (SIMPLE, GIB)])
def test_a_ring_starts_once_and_passes_a_chunk_on_in_every_round(protocol, size):
    """Eight GPUs: seven rounds to reduce and seven to gather, of an eighth of the message each."""
    message, chunk = Collective("all_reduce", size, "tensor"), size / 8 / (450e9 * 0.824 * protocol.share)
    route = network("hgx-h200", "ring").route(message, range(8))
    assert route.protocol == protocol.name
    assert route.seconds(size) == pytest.approx(protocol.start + 14 * (protocol.hop["nvlink"] + chunk))


def test_a_ring_over_two_nodes_waits_for_the_network_in_every_round():
    """Two GPUs on each side: the two hops between the nodes are the slowest, and all pieces must pass them."""
    size = 64 * MIB
    route = network("hgx-h200", "ring", nodes=2).route(Collective("all_gather", size, "tensor"), [0, 1, 8, 9])
    hop = SIMPLE.hop["network"] + size / 4 / (50e9 * 0.95)
    assert route.protocol == "Simple"
    assert route.seconds(size) == pytest.approx(SIMPLE.start + 3 * hop)


def test_peers_that_read_each_other_share_their_own_links():
    """One-shot among four: everyone's link carries three whole messages at once."""
    (peer,), size = PEER, 16 * KIB
    route = network("hgx-h200", "direct").route(Collective("all_reduce", size, "tensor"), range(4))
    assert route.seconds(size) == pytest.approx(
        peer.start + peer.hop["nvlink"] + 3 * size / (450e9 * 0.824 * peer.share))


def test_sockets_share_the_link_between_them():
    """Eight GPUs on two sockets: four pieces of four cross 22 GB/s each way, and no GPU sends more than 7."""
    size = 64 * MIB
    route = network("pcie-l40s", "pairwise").route(Collective("all_to_all", size, "expert"), range(8))
    between = 16 * size / 8 / (144e9 * 0.153)
    assert between > 7 * size / 8 / (32e9 * 0.63)
    assert route.seconds(size) == pytest.approx(SIMPLE.start + SIMPLE.hop["pcie"] + between)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_protocols_give_way_to_each_other_as_messages_grow(kind):
    """LL starts soonest, LL128 wastes less of the links, and Simple nothing."""
    nvlink = network("hgx-h200", "ring", "pairwise")
    chosen = [nvlink.route(Collective(kind, 2.0**exponent, "tensor"), range(8)).protocol for exponent in range(8, 31)]
    order = [protocol.name for protocol in NCCL]
    assert chosen == sorted(chosen, key=order.index)
    assert (chosen[0], chosen[-1]) == ("LL", "Simple")
    assert "LL128" in chosen or kind == "all_to_all"  # which has but one hop to start


@pytest.mark.parametrize("size, algorithm", [(4 * KIB, "direct"), (2 * MIB, "two_shot"), (64 * MIB, "ring")])
def test_one_shot_is_for_small_messages_two_shot_for_larger_ones_and_the_ring_for_the_largest(size, algorithm):
    assert network("hgx-h200").route(Collective("all_reduce", size, "tensor"), range(8)).algorithm == algorithm


@pytest.mark.parametrize("name, ranks, nodes", [("pcie-l40s", [0, 1], 1), ("hgx-h200", [0, 8], 2),
                                                ("hgx-h200", [0, 1, 2], 1)])
def test_peers_read_each_other_over_nvlink_only_and_in_groups_that_vllm_takes(name, ranks, nodes):
    route = network(name, nodes=nodes).route(Collective("all_reduce", KIB, "tensor"), ranks)
    assert route.algorithm == "ring"


@pytest.mark.parametrize("algorithms, kind, ranks, size", [
    (["ring"], "all_to_all", range(4), KIB), (["pairwise"], "all_reduce", range(4), KIB),
    (["direct", "two_shot"], "all_reduce", range(4), 64 * MIB), (["direct"], "all_reduce", range(3), KIB),
    (["pairwise"], "send", range(3), KIB),
])
def test_what_no_algorithm_takes_is_an_error_that_says_what_was_asked(algorithms, kind, ranks, size):
    with pytest.raises(ConfigError) as error:
        network("hgx-h200", *algorithms).route(Collective(kind, size, "tensor"), ranks)
    assert str(error.value) == (f"collectives: none of {', '.join(algorithms)} does {kind} of {size:.0f} bytes"
                                f" among {len(ranks)} GPUs over these links")


def test_what_no_link_carries_is_an_error():
    with pytest.raises(ConfigError, match="none of direct does all_reduce of 1024 bytes among 2 GPUs over these links"):
        network("pcie-l40s", "direct").route(Collective("all_reduce", KIB, "tensor"), range(2))


def test_one_gpu_has_nobody_to_send_to():
    assert network().seconds(Collective("all_reduce", GIB, "tensor"), [5]) == 0


@frozen
class LargeOnly:
    """A relay that takes large messages only: 0 to 1, then 1 to 2."""

    protocols = (Protocol("toy", 1.0, {"nvlink": 0.0}, share=1.0),)

    def takes(self, kind, ranks, size):
        return size >= MIB

    def rounds(self, kind, ranks):
        for source, target in pairwise(ranks):
            yield [Transfer(source, target, tuple(range(len(ranks))))]


def pair(**changes) -> System:
    """GPUs that reach 1 GB/s each."""
    return System(**{"name": "toy", "gpu": "toy", "gpus_per_node": 4, "interconnect": "nvlink", "inside": Link(1e9),
                     **changes})


def test_an_algorithm_may_take_large_messages_only():
    relay = Network(fabric(pair()), {"relay": LargeOnly()})
    assert relay.seconds(Collective("all_gather", 1e9, "tensor"), range(3)) == pytest.approx(1 + 2 * 1)
    with pytest.raises(ConfigError, match="none of relay does"):
        relay.route(Collective("all_gather", KIB, "tensor"), range(3))


@frozen
class TwoPairs:
    """0 sends to 1; 2, which was sent nothing, to 3 in the round after."""

    protocols = (Protocol("toy", 0.0, {"nvlink": 0.0}, share=1.0),)

    def takes(self, kind, ranks, size):
        return True

    def rounds(self, kind, ranks):
        yield [Transfer(ranks[0], ranks[1], (0, 1, 2, 3))]
        yield [Transfer(ranks[2], ranks[3], (0, 1, 2, 3))]


def test_a_rank_that_waits_for_nothing_sends_at_once():
    """So both transfers of 1 GB over 1 GB/s take place in the same second."""
    network = Network(fabric(pair()), {"pairs": TwoPairs()})
    assert network.seconds(Collective("all_gather", 1e9, "tensor"), range(4)) == pytest.approx(1.0)
