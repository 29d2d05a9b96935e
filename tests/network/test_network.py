"""Systems as graphs, and what messages over them take, counted by hand."""

from itertools import pairwise

import networkx as nx
import pytest
from attrs import evolve, frozen

from ksim.compute.graph import Collective, Fanout
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.network.collectives import Transfer
from ksim.network.links import FITTED, NCCL, UNFITTED, Protocol, measured
from ksim.network.network import Network, fabric
from ksim.specs.hardware import Leaf, Link, Pcie, Storage, System, Timing, Transport
from tests.cost.toys import network, system

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
H200 = network("hgx-h200").measured


def over(link: str, protocol: str) -> Timing:
    """What a protocol takes on H200."""
    return H200[protocol].links[link]


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


def test_a_ring_over_many_nodes_is_worked_out_once():
    """Its rounds are one and the same, and of sizes without end it is gone through for a few."""
    wide = network("pcie-l4", nodes=4)
    asked = [Collective("all_gather", 1000.0 * size, "data") for size in range(1, 400)]
    seconds = [wide.seconds(each, range(32)) for each in asked]
    assert seconds == sorted(seconds)
    for route in wide._routes["ring", "all_gather", tuple(range(32)), 0, None]:
        assert len(route.rounds) == 31
        assert len({id(hops) for hops in route.rounds}) == 1
        assert len(route._critical_path._lines) < 20


@pytest.mark.parametrize("name, source, target, nodes, bytes_per_second", [
    ("hgx-h200", 0, 7, 1, 450e9 * 0.824),
    ("gb200-nvl72", 0, 71, 1, 900e9 * 0.802),
    ("pcie-l40s", 0, 3, 1, 32e9 * 0.7),  # one socket
    ("pcie-l40s", 3, 4, 1, 144e9 * 0.153),  # two of them, whose 22.0 GB/s are less than PCIe's 22.4
    ("pcie-rtx-pro-6000", 3, 4, 1, 64e9 * 0.61),  # two of them, whose 43 GB/s are more
    ("hgx-h200", 0, 8, 2, 50e9 * 0.95),  # the NICs of two nodes
    ("hgx-h200", 8, 15, 2, 450e9 * 0.824),
])
def test_the_narrowest_link_between_two_gpus(name, source, target, nodes, bytes_per_second):
    assert bandwidth(name, source, target, nodes) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("protocol, size", [("LL", KIB), ("LL128", MIB), ("Simple", GIB)])
def test_a_ring_starts_once_and_passes_a_chunk_on_in_every_round(protocol, size):
    """Eight GPUs: seven rounds to reduce and seven to gather, of an eighth of the message each."""
    timing = over("nvlink", protocol)
    share = timing.share * (timing.eight if protocol != "LL" else 1)
    route = network("hgx-h200", "ring").route(Collective("all_reduce", size, "tensor"), range(8))
    assert route.protocol == protocol
    assert route.seconds(size) == pytest.approx(timing.start + 14 * (timing.hop + size / 8 / (450e9 * 0.824 * share)))


@pytest.mark.parametrize("ranks, nics", [([0, 8], 1), ([0, 1, 8, 9], 2), ([1, 0, 9, 8], 2), ([0, 8, 1, 9], 1),
                                         (list(range(16)), 8)])
def test_a_ring_over_two_nodes_waits_for_the_network_in_every_round_and_uses_all_nics(ranks, nics):
    """What leaves a node leaves by the NICs of all its GPUs in the group; where GPUs take turns, everyone leaves."""
    size, rounds = 64 * MIB, len(ranks) - 1
    route = network("hgx-h200", "ring", nodes=2).route(Collective("all_gather", size, "tensor"), ranks)
    piece, wired, inside = size / len(ranks), over("network", "Simple"), over("nvlink", "Simple")
    hops = [wired.hop + piece / (nics * 50e9 * 0.95), inside.hop + piece / (450e9 * 0.824 * inside.share)]
    assert route.protocol == "Simple"
    assert route.seconds(size) == pytest.approx((inside.start if nics > 1 else wired.start) + rounds * max(hops))


def test_peers_that_read_each_other_share_their_own_links():
    """One-shot among four: everyone's link carries three whole messages at once, and each peer takes its time."""
    timing, size = over("nvlink", "one-shot"), 16 * KIB
    route = network("hgx-h200", "direct").route(Collective("all_reduce", size, "tensor"), range(4))
    assert route.seconds(size) == pytest.approx(
        timing.start + 2 * timing.peer + 3 * size / (450e9 * 0.824 * timing.share))


def test_a_switch_that_adds_passes_each_piece_once():
    """Eight GPUs send seven pieces to their owners, who send theirs once: not 2 x 7/8 of the message but all of it."""
    size = GIB
    (route,) = network("hgx-h200", "nvls")._routes_of("nvls", "all_reduce", tuple(range(8)))
    timing = over("nvlink", "NVLS")
    assert route.sent == pytest.approx(1.0)
    assert route.seconds(size) == pytest.approx(timing.start + 2 * 7 / 8 * size / (450e9 * 0.824 * timing.share))
    assert route.least(size) == pytest.approx(2 * 7 / 8 * size / 450e9)


@pytest.mark.parametrize("name, size, algorithm", [
    ("hgx-h200", 16 * MIB, "ring"), ("hgx-h200", 64 * MIB, "nvls"), ("hgx-b200", GIB, "nvls"),
    ("hgx-a100", GIB, "ring"), ("pcie-rtx-pro-6000", GIB, "ring")])
def test_nccl_goes_through_the_switch_where_it_adds_and_the_message_is_large(name, size, algorithm):
    nccl = network(name, "ring", "nvls")
    assert nccl.route(Collective("all_reduce", size, "tensor"), range(8)).algorithm == algorithm
    assert nccl.route(Collective("all_reduce", size, "tensor"), range(4)).algorithm == "ring"


def test_sockets_share_the_link_between_them():
    """Eight GPUs on two sockets: four pieces of four cross 22 GB/s each way, and no GPU sends more than 7."""
    size, boards = 64 * MIB, network("pcie-l40s", "pairwise")
    route = boards.route(Collective("all_to_all", size, "expert"), range(8))
    timing = boards.measured["p2p-Simple"].links["pcie"]
    between = 16 * size / 8 / (144e9 * 0.153)
    assert between > 7 * size / 8 / (32e9 * 0.7)
    assert route.seconds(size) == pytest.approx(
        timing.start + 6 * timing.peer + between / (timing.share * timing.eight))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_protocols_give_way_to_each_other_as_messages_grow(kind):
    """LL starts soonest, LL128 wastes less of the links, and Simple nothing."""
    nvlink = network("hgx-h200", "ring", "pairwise")
    chosen = [nvlink.route(Collective(kind, 2.0**exponent, "tensor"), range(8)).protocol for exponent in range(8, 31)]
    order = ["p2p-LL", "p2p-Simple"] if kind == "all_to_all" else [protocol.name for protocol in NCCL]
    assert chosen == sorted(chosen, key=order.index)
    assert set(chosen) == set(order)


@pytest.mark.parametrize("name, gpus, ways", [
    ("hgx-a100", 8, {4: "direct", 128: "direct", 256: "two_shot", 4096: "two_shot", 8192: "ring"}),
    ("hgx-h200", 2, {4: "direct", 4096: "direct", 8192: "symmetric", 65536: "ring"}),
    ("hgx-h200", 4, {256: "direct", 512: "two_shot", 4096: "two_shot", 8192: "symmetric", 32768: "ring"}),
    ("hgx-h200", 8, {128: "direct", 256: "symmetric", 32768: "symmetric", 65536: "nvls"}),
    ("hgx-b200", 2, {1024: "direct", 2048: "symmetric", 8192: "ring"}),
    ("hgx-b200", 8, {128: "direct", 256: "two_shot", 512: "two_shot", 1024: "symmetric", 131072: "nvls"}),
    ("hgx-b300", 8, {128: "direct", 256: "two_shot", 2048: "two_shot", 4096: "symmetric", 65536: "nvls"}),
    ("gb300-nvl72", 4, {256: "direct", 2048: "two_shot", 4096: "symmetric", 32768: "ring"}),
    ("gb200-nvl72", 4, {256: "direct", 4096: "two_shot", 8192: "ring"}),
    ("pcie-l40s", 2, {4: "direct", 8192: "ring"}),
])
def test_an_all_reduce_goes_the_way_that_vllm_sends_it(name, gpus, ways):
    """By size in KiB: vLLM's own in one round or two, then symmetric memory, then NCCL; limits are of the GPU.

    Whether or not that is the fastest: two B200 would send 2 MiB by a ring in less time.
    """
    nodes = network(name)
    assert {size: nodes.route(Collective("all_reduce", size * KIB, "tensor"), range(gpus)).algorithm
            for size in ways} == ways


@pytest.mark.parametrize("name, ranks, nodes", [("pcie-l40s", [0, 1, 2, 3], 1), ("hgx-h200", [0, 8], 2),
                                                ("hgx-h200", [0, 1, 2], 1)])
def test_peers_read_each_other_inside_a_node_and_in_groups_that_vllm_takes(name, ranks, nodes):
    route = network(name, nodes=nodes).route(Collective("all_reduce", KIB, "tensor"), ranks)
    assert route.algorithm == "ring"


@pytest.mark.parametrize("algorithms, kind, ranks, size", [
    (["ring"], "all_to_all", range(4), KIB), (["pairwise"], "all_reduce", range(4), KIB),
    (["direct", "two_shot"], "all_reduce", range(4), 64 * MIB), (["direct"], "all_reduce", range(3), KIB),
    (["pairwise"], "send", range(3), KIB),
])
def test_a_collective_that_no_algorithm_takes_is_an_error_that_names_it(algorithms, kind, ranks, size):
    with pytest.raises(ConfigError) as error:
        network("hgx-h200", *algorithms).route(Collective(kind, size, "tensor"), ranks)
    assert str(error.value) == (f"collectives: none of {', '.join(algorithms)} does {kind} of {size:.0f} bytes"
                                f" among {len(ranks)} GPUs over these links")


def test_a_collective_that_no_link_carries_is_an_error():
    with pytest.raises(ConfigError, match="none of direct does all_reduce of 1024 bytes among 2 GPUs over these links"):
        network("pcie-l4", "direct").route(Collective("all_reduce", KIB, "tensor"), range(2))


@pytest.mark.parametrize("name, ranks, factors", [
    ("hgx-h200", [0, 1], FITTED["Simple", "nvlink"]),
    ("pcie-rtx-pro-6000", [0, 4], FITTED["Simple", "pcie"]),
    ("pcie-l4", [0, 1], UNFITTED["pcie"]),  # no L4 was measured
    ("hgx-h200", [0, 1, 8], UNFITTED["network"]),  # nor anything between nodes
])
def test_an_interval_is_what_was_measured_of_the_protocol_and_the_least_certain_link(name, ranks, factors):
    ring, message = network(name, "ring", nodes=2), Collective("all_gather", GIB, "tensor")
    seconds = ring.seconds(message, ranks)
    assert ring.route(message, ranks).protocol == "Simple"
    assert ring.interval(message, ranks) == pytest.approx([factor * seconds for factor in factors])


def test_every_interval_holds_what_is_predicted():
    assert all(low < 1 < high for low, high in (*FITTED.values(), *UNFITTED.values()))


def test_a_protocol_that_there_is_not_is_an_error():
    with pytest.raises(UnknownName, match="LL256"):
        measured(system("hgx-h200"), [Transport("new", "a test", {"LL256": Timing(1e-6, 0.5)})])


def test_one_gpu_has_nobody_to_send_to():
    alone = network(), Collective("all_reduce", GIB, "tensor"), [5]
    assert Network.seconds(*alone) == 0 and Network.interval(*alone) == (0, 0)


@frozen
class LargeOnly:
    """A relay that takes large messages only: 0 to 1, then 1 to 2."""

    protocols = (Protocol("toy", {"nvlink": Timing(start=1.0, share=1.0)}),)

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
    relay = Network(pair(), {"relay": LargeOnly()})
    assert relay.seconds(Collective("all_gather", 1e9, "tensor"), range(3)) == pytest.approx(1 + 2 * 1)
    with pytest.raises(ConfigError, match="none of relay does"):
        relay.route(Collective("all_gather", KIB, "tensor"), range(3))


@frozen
class TwoPairs:
    """0 sends to 1; 2, which was sent nothing, to 3 in the round after."""

    protocols = (Protocol("toy", {"nvlink": Timing(start=0.0, share=1.0)}),)

    def takes(self, kind, ranks, size):
        return True

    def rounds(self, kind, ranks):
        yield [Transfer(ranks[0], ranks[1], (0, 1, 2, 3))]
        yield [Transfer(ranks[2], ranks[3], (0, 1, 2, 3))]


def test_a_rank_that_waits_for_nothing_sends_at_once():
    """So both transfers of 1 GB over 1 GB/s take place in the same second."""
    network = Network(pair(), {"pairs": TwoPairs()})
    assert network.seconds(Collective("all_gather", 1e9, "tensor"), range(4)) == pytest.approx(1.0)


@pytest.mark.parametrize("kind, size, microseconds", [
    # Of 128 tokens of 7,168 numbers: 8 copies each in FP8 with scales, in BF16; 4,096 tokens over 20 SMs on 5.25 ranks.
    ("low_latency_dispatch", 128 * 8 * 7168 * 1.03125, 35.1), ("low_latency_combine", 128 * 8 * 7168 * 2, 67.7),
    ("dispatch", 4096 * 5.251 * 7168 * 1.03125, 494.0), ("combine", 4096 * 5.251 * 7168 * 2, 996.0),
])
def test_deepep_takes_what_was_measured_on_eight_h200(kind, size, microseconds):
    """AIConfigurator 095f58a: 256 experts, 8 of them a token."""
    seconds = network("hgx-h200", "deepep").seconds(Collective(kind, size, "expert"), range(8))
    assert seconds == pytest.approx(microseconds * 1e-6, rel=0.2)  # the worst, of dispatch, is 18 %


def test_deepep_is_there_where_it_was_measured():
    for name, nodes, ranks in (("pcie-l40s", 1, range(4)), ("hgx-b300", 2, range(16))):
        with pytest.raises(ConfigError, match="none of deepep does dispatch of 1000 bytes"):
            network(name, "deepep", nodes=nodes).seconds(Collective("dispatch", 1000, "expert"), ranks)


#: Bytes of a token of 7,168 numbers, in FP8 with scales and in BF16.
THERE, BACK = 7168 * 1.03125, 7168 * 2


@pytest.mark.parametrize("ranks, there, back", [(8, 153, 158), (16, 43, 43), (32, 58, 57), (64, 51, 50)])
def test_deepep_takes_what_its_own_table_says_of_tokens_for_nodes(ranks, there, back):
    """GB/s on H800 with 4,096 tokens, 8 experts and 4 groups, which lie one in each node.

    The table counts a copy of a token for each node that it reaches, its own too, or within a node for each rank
    (github.com/deepseek-ai/DeepEP, docs/legacy.md).  Drawn like its test, a token reaches 5.30 ranks of 8, and 1.99,
    3.61 and 3.98 nodes.
    """
    nodes, copies = ranks // 8, {8: 5.30, 16: 1.99, 32: 3.61, 64: 3.98}[ranks]
    fanout = Fanout(8, nodes, 4) if nodes > 4 else Fanout(8)
    alone = network("hgx-h800", "deepep", nodes=nodes)
    for kind, token, rate in (("dispatch", THERE, there), ("combine", BACK, back)):
        message = Collective(kind, 4096 * fanout.reached(ranks) * token, "expert", fanout=fanout)
        assert 4096 * copies * token / alone.seconds(message, range(ranks)) == pytest.approx(rate * 1e9, rel=0.03)


@pytest.mark.parametrize("ranks, there, back", [
    (8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)])
def test_deepep_takes_what_its_own_table_says_of_tokens_for_experts(ranks, there, back):
    """Microseconds on H800 with 128 tokens and 8 experts (github.com/deepseek-ai/DeepEP, docs/legacy.md)."""
    alone = network("hgx-h800", "deepep", nodes=ranks // 8)
    for kind, token, microseconds in (("dispatch", THERE, there), ("combine", BACK, back)):
        message = Collective(f"low_latency_{kind}", 128 * 8 * token, "expert")
        assert alone.seconds(message, range(ranks)) == pytest.approx(microseconds * 1e-6, rel=0.06)


def test_deepep_on_h100_is_near_a_later_release():
    """The second version on 2 and 4 nodes, with 8,192 tokens: 90 and 61 GB/s there, 81 and 61 back (its README)."""
    for nodes, copies, rates in ((2, 1.99, (90, 81)), (4, 3.61, (61, 61))):
        alone, ranks = network("hgx-h100", "deepep", nodes=nodes), range(8 * nodes)
        for kind, token, rate in zip(("dispatch", "combine"), (THERE, BACK), rates, strict=True):
            message = Collective(kind, 8192 * Fanout(8).reached(8 * nodes) * token, "expert", fanout=Fanout(8))
            seconds, (_, high) = alone.seconds(message, ranks), alone.interval(message, ranks)
            later = 8192 * copies * token / (rate * 1e9)
            assert later < high and later == pytest.approx(seconds, rel=0.05 if nodes == 4 else 0.5)


def test_one_copy_of_a_token_passes_between_nodes():
    """Of 16 ranks 6.45 have an expert of a token, of 2 nodes 1.99: half of each pass, in 1.99 / 6.45 of the bytes."""
    message = Collective("dispatch", 1e9, "expert", fanout=Fanout(8))
    pair = network("hgx-h200", "deepep", nodes=2)
    for kind in ("dispatch", "combine"):
        once = pair.route(evolve(message, kind=kind), range(16))
        each = pair.route(evolve(message, kind=kind, fanout=None), range(16))
        assert each.routed == pytest.approx(0.5)
        assert once.routed == pytest.approx(0.5 * Fanout(8).reached(2) / Fanout(8).reached(16))
        assert each.sent - each.routed == pytest.approx(once.sent - once.routed) == pytest.approx(7 / 8)


def test_more_ranks_of_a_rack_than_were_measured_are_less_certain():
    rack, message = network("gb200-nvl72", "deepep"), Collective("low_latency_dispatch", MIB, "expert")
    few, many = (rack.route(message, range(ranks)).interval_factors for ranks in (8, 48))
    assert many[0] <= few[0] and many[1] > few[1]


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize("name", ["hgx-h200", "pcie-l40s"])
def test_links_of_flows_leave_prices_of_collectives_as_they_are(name, kind):
    plain, rich = network(name, nodes=2), network(name, nodes=2)
    rich.system = evolve(rich.system, pcie=Pcie("1 GB/s", 0.5), leaf=Leaf(1, 8.0), storage=Storage("1 GB/s"))
    for size in (KIB, MIB, GIB):
        collective = Collective(kind, size, "tensor")
        assert rich.seconds(collective, range(16)) == plain.seconds(collective, range(16))
