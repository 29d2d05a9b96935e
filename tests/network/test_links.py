"""The links of a fleet: their numbers and names, and the paths over them."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.network.links import Links
from ksim.network.network import fabric, path
from ksim.network.routes import DISK, KINDS, Machines
from ksim.scenario.hardware import gpu_of
from ksim.specs.hardware import Leaf, Pcie, Storage
from tests.cost.toys import system
from tests.properties import examples


def machines(name: str, nodes: int = 1, **changes) -> Machines:
    found = evolve(system(name, nodes), **changes)
    return Machines(found, gpu_of(found.gpu))


#: Two boxes with NVLink, and three without behind leaf switches for two nodes each.
MIXED = Links.of([machines("hgx-h200", 2, storage=Storage("10 GB/s", 4, "25 GB/s")),
                  machines("pcie-l40s", 3, leaf=Leaf(2, 2.0))])


def named(links: Links, source: str, target: str) -> list[str]:
    return [links.names[link] for link in links.path(source, target)]


@pytest.mark.parametrize("source, target, expected", [
    ("gpu0", "gpu7", ["gpu0 NVLink out", "gpu7 NVLink in"]),
    ("gpu7", "gpu8", ["gpu7 PCIe out", "gpu7 PCIe both ways", "gpu7 NIC out",
                      "gpu8 NIC in", "gpu8 PCIe in", "gpu8 PCIe both ways"]),
    ("gpu3", "host0", ["gpu3 PCIe out", "gpu3 PCIe both ways"]),
    ("host1", "gpu9", ["gpu9 PCIe in", "gpu9 PCIe both ways"]),
    ("host1", "gpu3", ["gpu11 NIC out", "gpu3 NIC in", "gpu3 PCIe in", "gpu3 PCIe both ways"]),  # the NIC of its place
    ("host0", "host1", ["gpu0 NIC out", "gpu8 NIC in"]),
    ("gpu16", "gpu19", ["gpu16 PCIe out", "gpu16 PCIe both ways", "gpu19 PCIe in", "gpu19 PCIe both ways"]),
    ("gpu16", "gpu20", ["gpu16 PCIe out", "gpu16 PCIe both ways", "node2 socket0 out",
                        "gpu20 PCIe in", "gpu20 PCIe both ways"]),
    ("gpu23", "gpu16", ["gpu23 PCIe out", "gpu23 PCIe both ways", "node2 socket0 in",
                        "gpu16 PCIe in", "gpu16 PCIe both ways"]),
    ("host2", "host3", ["gpu16 NIC out", "gpu24 NIC in"]),  # one leaf switch
    ("host3", "host4", ["gpu24 NIC out", "leaf0 spine out", "leaf1 spine in", "gpu32 NIC in"]),
    ("host0", "host4", ["gpu0 NIC out", "leaf1 spine in", "gpu32 NIC in"]),
    ("storage", "gpu1", ["storage out", "node0 storage in", "gpu1 PCIe in", "gpu1 PCIe both ways"]),
    ("host1", "storage", ["storage in", "node1 storage out"]),
    ("gpu5", "gpu5", []), ("host5", "host5", []),
])
def test_a_path_passes_the_links_on_its_way(source, target, expected):
    if source == target:
        assert MIXED.path(source, target) == ()
    else:
        assert named(MIXED, source, target) == expected


@pytest.mark.parametrize("name, capacity, peak", [
    ("gpu0 NVLink out", 450e9 * 0.824, 450e9), ("gpu9 PCIe in", 50e9, 64e9), ("gpu9 PCIe both ways", 83.4e9, 128e9),
    ("gpu20 PCIe both ways", 41.7e9, 64e9), ("gpu20 NIC in", 25e9 * 0.95, 25e9),
    ("node3 socket0 in", 144e9 * 0.153, 144e9), ("leaf1 spine in", 16 / 2 * 25e9 * 0.95, 16 / 2 * 25e9),
    ("storage out", 40e9, 40e9), ("node1 storage in", 25e9, 25e9),
])
def test_capacities_are_what_is_reached_of_line_rates(name, capacity, peak):
    link = MIXED.names.index(name)
    assert (MIXED.capacities[link], MIXED.peaks[link]) == pytest.approx((capacity, peak))


@pytest.mark.parametrize("name", catalog.entries("systems"))
def test_flows_and_prices_of_collectives_count_on_the_same_links(name):
    """But for PCIe, of which copies reach another share than NCCL."""
    links, graph = Links.of([machines(name, 2)]), fabric(system(name, 2))
    size = system(name).gpus_per_node
    for target in (1, size - 1, size, 2 * size - 1):
        passed = {(links.kinds[link], links.capacities[link]) for link in links.path("gpu0", f"gpu{target}")}
        priced = {(graph.edges[edge]["kind"], graph.edges[edge]["bandwidth"]) for edge in path(graph, 0, target)}
        flows = {capacity for kind, capacity in passed if kind in ("nvlink", "nic", "sockets")}
        between = {rate for kind, rate in priced if kind != "pcie" or rate == links_between(name)}
        assert flows == {rate for rate in between if rate != system(name).network.bandwidth}, target


def links_between(name: str) -> float:
    sockets = system(name).between_sockets
    return sockets.bandwidth * sockets.efficiency if sockets else 0.0


def test_every_link_has_one_number_name_and_kind():
    count = 2 * (8 * 7 + 2) + 2 + 3 * (8 * 5 + 2) + 2 * 2
    assert len(MIXED.names) == len({*MIXED.names}) == len(MIXED.kinds) == len(MIXED.capacities) == count
    assert {*MIXED.kinds} == {*KINDS} - {DISK}  # there are links to disks only where something uses them
    assert MIXED.line_rate(MIXED.path("gpu0", "gpu8")) == 50e9 and MIXED.line_rate(()) == float("inf")


PARTS = st.tuples(st.sampled_from(catalog.entries("systems")), st.integers(1, 3), st.sampled_from([None, 1, 2]))


@given(st.lists(PARTS, min_size=1, max_size=3), st.data())
@examples(100)
def test_paths_begin_and_end_at_their_ends_and_back_is_the_same_way(parts, data):
    links = Links.of([machines(name, nodes, leaf=leaf and Leaf(leaf)) for name, nodes, leaf in parts])
    sizes = [(system(name).gpus_per_node, nodes) for name, nodes, _ in parts]
    gpu = st.integers(0, sum(size * nodes for size, nodes in sizes) - 1)
    host = st.integers(0, sum(nodes for _, nodes in sizes) - 1)
    ends = st.one_of(gpu.map(lambda number: f"gpu{number}"), host.map(lambda number: f"host{number}"))
    source, target = data.draw(ends), data.draw(ends)
    there, back = named(links, source, target), named(links, target, source)
    turned = [turn(name) for name in there]
    assert len({*there}) == len(there) and sorted(turned) == sorted(back)
    if source.startswith("gpu") and source != target:
        assert there[0].startswith(f"{source} ") and there[0].endswith(" out")


def turn(name: str) -> str:
    """The link the other way."""
    start, _, way = name.rpartition(" ")
    return f"{start} { {'out': 'in', 'in': 'out'}.get(way, way)}"


@pytest.mark.parametrize("name, source, target, problem", [
    ("hgx-h200", "gpu8", "gpu0", "network: there is no 'gpu8': the fleet has gpu0 to gpu7, host0 to host0, and storage;"
                                 " more nodes have more"),
    ("hgx-h200", "gpu0", "host1", "there is no 'host1'"), ("hgx-h200", "nic3", "gpu0", "there is no 'nic3'"),
    ("hgx-h200", "gpu0", "storage", "there is no path from storage to gpu0; give the file of 'HGX H200' a [storage]"),
])
def test_ends_that_there_are_not(name, source, target, problem):
    with pytest.raises(ConfigError) as error:
        Links.of([machines(name)]).path(source, target)
    assert problem in str(error.value)


def test_nodes_without_a_network_reach_no_other():
    links = Links.of([machines("hgx-h200", network=None), machines("pcie-l40s")])
    with pytest.raises(ConfigError, match="no path from gpu9 to gpu0; give the file of 'HGX H200' a \\[network\\]"):
        links.path("gpu9", "gpu0")


def test_nics_beside_their_gpus_leave_the_lanes_to_the_host():
    links = Links.of([machines("hgx-b300", 2)])
    assert named(links, "gpu0", "gpu8") == ["gpu0 NIC out", "gpu8 NIC in"]


def test_lanes_are_as_a_system_says():
    links = Links.of([machines("hgx-h100", pcie=Pcie("32 GB/s", 0.5, "20 GB/s"))])
    assert [links.capacities[link] for link in links.path("gpu0", "host0")] == [16e9, 20e9]


def test_a_large_fleet_is_numbered_soon():
    """Ten thousand nodes: what paths need is worked out from numbers, and names are made when they are asked for."""
    links = Links.of([machines("hgx-h100", 10_000, leaf=Leaf(32))])
    assert "names" not in vars(links)
    path = links.path("gpu79999", "gpu0")
    assert [links.names[link] for link in path][2:6] == ["gpu79999 NIC out", "leaf312 spine out", "leaf0 spine in",
                                                         "gpu0 NIC in"]
