"""Copies over PCIe and loads of weights are flows beside transfers."""

import pytest

from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.foundation.units import GIB
from ksim.kv.transfer.connectors.engines import Nixl
from ksim.kv.transfer.transfer import KvLayout, KvPlacement, LayerShare, TransferNetwork
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.network.routes import Machines
from ksim.scenario.hardware import gpu_of
from ksim.specs.hardware import Link, Storage, System

PLAIN = System("plain", "h100", 8, "nvlink", Link("400 GB/s"), Link("50 GB/s"), nodes=2,
               storage=Storage("10 GB/s", 4, "25 GB/s"))


@pytest.fixture
def network() -> TransferNetwork:
    env, links = Horizon(), Links.of([Machines(PLAIN, gpu_of("h100"))])
    return TransferNetwork(env, links, Flows(env, links), Nixl(start=0.0, share=1.0), Log())


def test_a_copy_takes_the_lanes_of_its_gpu(network):
    flow = network.copy(10 * GIB, "host0", "gpu3")
    network.env.run(flow.done)
    lanes = network.links.capacities[network.links.names.index("gpu3 PCIe in")]
    assert network.env.now == pytest.approx(10 * GIB / lanes)


def test_loads_of_weights_share_the_storage(network):
    """Eight GPUs of each node load at once: 40 GB/s in all."""
    flows = [network.copy(GIB, "storage", f"gpu{gpu}") for gpu in range(16)]
    network.env.run()
    assert [flow.ended for flow in flows] == pytest.approx([16 * GIB / 40e9] * 16)


def test_a_copy_makes_a_transfer_over_the_same_lanes_slower(network):
    """KV leaves the node by the lanes of its GPU, over which the GPU's memory is copied to the host."""
    layout = KvLayout(1, (LayerShare(0, 1000.0),))
    route = network.route(KvPlacement([0], layout), KvPlacement([8], layout))
    alone = route.alone(1 << 20, last=True)
    (moved,), copied = network.send(route, 1 << 20, last=True), network.copy(GIB, "gpu0", "host0")
    network.env.run()
    assert moved.ended is not None and copied.ended is not None
    assert moved.ended > 1.2 * alone and copied.ended > 1.2 * copied.alone


def test_what_a_transfer_takes_alone_counts_flows_that_share_a_link(network):
    """Two GPUs send all to one."""
    source, target = KvLayout(2, (LayerShare(0, 500.0, 2),)), KvLayout(1, (LayerShare(0, 1000.0),))
    route = network.route(KvPlacement([0, 1], source), KvPlacement([8], target))
    assert route.alone(1 << 20, last=True) == pytest.approx(1000 * (1 << 20) / 50e9, rel=0.1)
