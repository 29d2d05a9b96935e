"""Whatever the algorithm: everyone ends up with what the collective promises, and no link carries more than it can."""

from collections import Counter
from itertools import pairwise, product

import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.network.collectives import KINDS, Round, rounds_across
from ksim.network.links import DEEPEP
from ksim.network.network import Network
from ksim.scenario.hardware import protocols_of
from tests.cost.toys import network, system
from tests.properties import examples

NAMES = catalog.names("network.collectives")
SYSTEMS = catalog.entries("systems")
SIZES = st.floats(0, 31).map(lambda exponent: 2.0**exponent)


def algorithm(name: str):
    return catalog.find("network.collectives", name)()


def taken() -> list[tuple[str, str, int]]:
    """Every algorithm with each kind and number of ranks that it takes, with a message of some size."""
    return [(name, kind, ranks) for name, kind, ranks in product(NAMES, KINDS, range(2, 11))
            if any(algorithm(name).takes(kind, ranks, size) for size in (1.0, 2.0**20, 2.0**30))]


def rounds(name: str, kind: str, ranks: list[int], node: int) -> list[Round]:
    """The rounds where a node has so many GPUs; alone on a node, a GPU has nobody to forward for it."""
    across = rounds_across(algorithm(name), kind, ranks, lambda rank: rank // node)
    return across or list(algorithm(name).rounds(kind, ranks))


def play(name: str, kind: str, ranks: list[int], node: int) -> dict[tuple[int, int], set[int]]:
    """Move sets of contributors instead of numbers: whose values are in which piece on which rank in the end.

    Where a piece is sent several times at once, it is that of so many ranks.
    """
    pieces = range(len(ranks))
    held = {(rank, piece): {rank} for rank, piece in product(ranks, pieces)}
    if kind == "all_gather":
        held = {(rank, piece): {rank} if ranks[piece] == rank else set() for rank, piece in held}
    if kind == "send":
        held = {(rank, piece): {rank} if rank == ranks[0] else set() for rank, piece in held}
    for round_ in rounds(name, kind, ranks, node):
        before = {key: set(contributors) for key, contributors in held.items()}
        for transfer in round_:
            for piece in set(transfer.pieces):
                sent, there = before[transfer.source, piece], held[transfer.target, piece]
                assert sent.isdisjoint(there) or sent >= there, "a value is added twice"
                held[transfer.target, piece] = there | sent
    return held


def promised(kind: str, ranks: list[int]) -> dict[tuple[int, int], set[int]]:
    """Whose values must be in which piece on which rank."""
    everyone, pieces = set(ranks), range(len(ranks))
    return {
        "all_reduce": {(rank, piece): everyone for rank in ranks for piece in pieces},
        "all_gather": {(rank, piece): {ranks[piece]} for rank in ranks for piece in pieces},
        "reduce_scatter": {(ranks[piece], piece): everyone for piece in pieces},
        "all_to_all": {(ranks[piece], piece): everyone for piece in pieces},
        "send": {(ranks[-1], piece): {ranks[0]} for piece in pieces},
        # What came from before, beside one's own.
        "shift": {(rank, piece): {rank, ranks[place - 1]} for place, rank in enumerate(ranks) for piece in pieces},
    }.get(kind) or promised("all_to_all", ranks)  # DeepEP's, where as many tokens go to each rank


@pytest.mark.parametrize("name, kind, size", taken())
@given(data=st.data())
@examples(5)
def test_everyone_ends_up_with_what_is_promised(name, kind, size, data):
    """Whatever the numbers of the GPUs: pieces are counted by their places in the group."""
    ranks = data.draw(st.permutations(range(20)))[:size]
    held = play(name, kind, ranks, node=data.draw(st.integers(1, 20)))
    for key, contributors in promised(kind, ranks).items():
        assert held[key] == contributors, key


@pytest.mark.parametrize("name", NAMES)
@given(kind=st.sampled_from([*KINDS, "broadcast"]), ranks=st.integers(2, 8), size=SIZES)
@examples(40)
def test_an_algorithm_is_used_for_what_it_takes_and_nothing_else(name, kind, ranks, size):
    alone = network("hgx-h200", name)
    taken = algorithm(name).takes(kind, ranks, size)
    if taken and any(low <= size < limit for low, limit in windows(alone, name, ranks)):
        assert alone.route(Collective(kind, size, "tensor"), range(ranks)).algorithm == name
    else:
        with pytest.raises(ConfigError, match=f"none of {name} does {kind}"):
            alone.route(Collective(kind, size, "tensor"), range(ranks))


def windows(alone: Network, name: str, ranks: int) -> list[tuple[float, float]]:
    """Messages that the protocols of an algorithm are for, over NVLink."""
    return [alone.measured[protocol.name].links["nvlink"].window(ranks) for protocol in algorithm(name).protocols]


def test_every_kind_is_done_by_some_algorithm():
    assert {kind for _, kind, _ in taken()} == set(KINDS)


#: Bytes that each GPU must send and receive at least, for each byte of the message among n.
LEAST = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
         "reduce_scatter": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n, "send": lambda n: 0.0,
         "shift": lambda n: 1.0,
         **dict.fromkeys((protocol.kind for protocol in DEEPEP), lambda n: (n - 1) / n)}
#: The same where the switch adds up: what it adds passes a link once.
MERGED = {"all_reduce": lambda n: 1.0}


@st.composite
def groups(draw) -> tuple[Network, str, Collective, list[int]]:
    """An algorithm of a network, with a message that it takes and GPUs anywhere in the system."""
    name, kind, size = draw(st.sampled_from(taken()))
    wired = system(draw(st.sampled_from(SYSTEMS)), nodes=draw(st.integers(1, 3)))
    assume(size <= wired.gpus)
    ranks = draw(st.lists(st.integers(0, wired.gpus - 1), min_size=size, max_size=size, unique=True))
    message = Collective(kind, draw(SIZES), "tensor")
    assume(algorithm(name).takes(kind, size, message.bytes))
    known = protocols_of(wired) if draw(st.booleans()) else {}
    return Network(wired, {name: algorithm(name)}, known), name, message, ranks


@given(groups())
@examples(35)
def test_no_time_is_below_what_the_links_allow(group):
    """Neither below what any algorithm would need of the GPUs' links, nor below this one's own load on any link."""
    alone, name, message, ranks = group
    try:
        seconds = alone.seconds(message, ranks)
    except ConfigError:  # the links between these GPUs carry none of its protocols
        return
    least = (MERGED if merging(name) else LEAST)[message.kind](len(ranks)) * message.bytes
    for rank in ranks:
        assert seconds >= least / sum(edge["bandwidth"] for _, _, edge in alone.graph.out_edges(rank, data=True))
    carried = loads(alone.graph, name, message, ranks)
    for edge, load in carried.items():
        assert seconds >= load / alone.graph.edges[edge]["bandwidth"] * (1 - 1e-9), edge


def merging(name: str) -> bool:
    return any(protocol.merging for protocol in algorithm(name).protocols)


def loads(graph: nx.DiGraph, name: str, message: Collective, ranks: list[int]) -> Counter[tuple[object, object]]:
    """Bytes that the algorithm puts on each link; NICs of a node's GPUs in the group bear equal parts."""
    carried: Counter[tuple[object, object]] = Counter()
    gpus_of_a_node = sum(data == graph.nodes[0]["node"] for _, data in graph.nodes(data="node"))
    for round_ in rounds(name, message.kind, ranks, gpus_of_a_node):
        copies = Counter((edge, piece) for transfer in round_ for piece in transfer.pieces
                         for edge in pairwise(nx.shortest_path(graph, transfer.source, transfer.target)))
        for (edge, _), count in copies.items():
            carried[edge] += (1 if merging(name) else count) * message.bytes / len(ranks)
    gpus = Counter(graph.nodes[rank]["node"] for rank in ranks)
    pooled: Counter[str] = Counter()
    for edge, load in carried.items():
        pooled[graph.edges[edge]["pool"]] += load
    return Counter({edge: pooled[link["pool"]] / gpus[link["node"]] if (link := graph.edges[edge])["pool"] else load
                    for edge, load in carried.items()})


@given(groups(), st.floats(1, 1000))
@examples(25)
def test_a_larger_message_never_takes_less(group, factor):
    alone, name, message, ranks = group
    larger = Collective(message.kind, message.bytes * factor, message.group)
    assume(algorithm(name).takes(message.kind, len(ranks), larger.bytes))
    try:
        assert alone.seconds(larger, ranks) >= alone.seconds(message, ranks)
    except ConfigError:
        return
