"""GPUs and systems: what a data file may say, and what the catalogue's files do say."""

import itertools
import json
from pathlib import Path

import pytest
from attrs import evolve

from ksim.compute.kernels.basic import Gemm, Pointwise
from ksim.cost.energy import actions, joules
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.hardware import Gpu, Leaf, Link, System, Timing, Transport

GPUS = {name: structure(Gpu, catalog.load("gpus", name), name) for name in catalog.entries("gpus")}
SYSTEMS = {name: structure(System, catalog.load("systems", name), name) for name in catalog.entries("systems")}

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "kernels" / "gpus.json"
REFERENCE_NAMES = {
    "a100-80g": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200",
    "b300": "b300_sxm", "gb300": "gb300", "l40s": "l40s", "l4": "l4", "rtx-pro-6000": "rtx_pro_6000_server",
    "h100-pcie": "h100_pcie",
}
#: Where we differ from the reference, and why.
EXCEPTIONS = {
    ("l4", "mem_capacity_gib"): "24 GB are sold; ECC leaves 23,034 MiB",
    ("b200", "pcie_bw_gbs_unidir"): "HGX B200 hosts have PCIe Gen5; the reference takes the chip's Gen6",
    ("b300", "pcie_bw_gbs_unidir"): "the link to the host, as of HGX B200",
    ("rtx-pro-6000", "mem_bw_gbs"): "1,792 GB/s is the Workstation Edition's; none of its kernels exceeds 1,540",
}


def test_quantities_are_read_with_their_units():
    gpu = GPUS["h200"]
    assert gpu.bandwidth == 4.8e12
    assert gpu.memory == 139.8 * 2**30
    assert gpu.flops[DType.BF16] == 989.5e12
    assert 0.5e-12 < gpu.power.flop[DType.BF16] < 1e-12


@pytest.mark.parametrize("changes, problem", [
    ({"bandwidth": "4.8 terabytes"}, "'4.8 terabytes' is not a quantity such as '4.8 TB/s'"),
    ({"bandwidth": 0}, "'bandwidth' must be > 0: 0.0"),
    ({"sms": "many"}, "sms: expected a whole number, not 'many'"),
    ({"flops": {}}, "Length of 'flops' must be >= 1: 0"),
    ({"flops": {"bf16": 0}}, "'flops' must be > 0: 0.0"),
    ({"flops": {"fp7": 1}}, "'fp7' is not a number format (fp4, int4, fp8, int8, bf16, fp16, fp32, fp8_block, nvfp4,"
                            " mxfp4, int4_block, int4_g64, int4_g128, int4_g32_zp, int4_g64_zp, int4_g128_zp, int8_g32,"
                            " int8_g64, int8_g128, int8_g32_zp, int8_g64_zp, int8_g128_zp, nf4, nf4_double)"),
    ({"hbm": 1}, "hbm: unknown key; expected name, architecture, sms, clock, memory, bandwidth, l2, flops,"
                 " pcie, power, nvlink, system, source, channel, profile, driver_memory"),
])
def test_gpu_files_that_make_no_sense_are_refused(changes, problem):
    with pytest.raises(ConfigError) as error:
        structure(Gpu, {**catalog.load("gpus", "h200"), **changes}, "h200.toml")
    assert str(error.value).startswith("h200.toml: ")
    assert str(error.value).endswith(problem)


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_gpus_agree_with_the_reference(name):
    if not REFERENCE.exists():
        pytest.skip("the reference is not here")
    gpu, reference = GPUS[name], json.loads(REFERENCE.read_text())["gpus"][REFERENCE_NAMES[name]]
    facts = reference["not_from_yaml"]
    pairs = {
        "mem_bw_gbs": (gpu.bandwidth / 1e9, reference["mem_bw_gbs"]),
        "mem_capacity_gib": (gpu.memory / 2**30, reference["mem_capacity_gib"]),
        "power_w": (gpu.power.limit, reference["power_w"]),
        "pcie_bw_gbs_unidir": (gpu.pcie / 1e9, reference["pcie_bw_gbs_unidir"]),
        "intra_node_bw_gbs_unidir": ((gpu.nvlink or gpu.pcie) / 1e9, reference["intra_node_bw_gbs_unidir"]),
        "sm_count": (gpu.sms, facts["sm_count"]),
        "l2_mib": (gpu.l2 / 2**20, facts["l2_mib"]),
        "boost_mhz": (gpu.clock / 1e6, facts.get("boost_mhz", gpu.clock / 1e6)),
        **{dtype: (gpu.flops[DType.named(dtype)] / 1e12, peak) for dtype, peak in reference["peak_tflops"].items()},
    }
    differing = {(name, key) for key, (ours, theirs) in pairs.items() if ours != pytest.approx(theirs, rel=0.02)}
    assert differing == {exception for exception in EXCEPTIONS if exception[0] == name}


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_says_where_its_figures_come_from(name):
    assert GPUS[name].source.startswith("https://")
    assert GPUS[name].power.source.startswith(("Measured", "Fitted", "Estimate"))


@pytest.mark.parametrize("name", GPUS)
def test_every_format_has_its_power(name):
    gpu = GPUS[name]
    assert gpu.power.flop.keys() == gpu.flops.keys()
    assert {DType.FP32, DType.BF16} <= gpu.flops.keys()


def watts(gpu, kernel, seconds):
    return gpu.power.idle + joules(actions(kernel, seconds, gpu), gpu.power).total / seconds


@pytest.mark.parametrize("name", GPUS)
def test_power_at_work_is_near_the_limit_and_streaming_is_below_it(name):
    """A large GEMM as fast as was observed, and memory read at 92 % of its bandwidth, which takes all of 400 W; clocks
    have to fall on boards whose power is known, and the H20's SMs could do more."""
    gpu = GPUS[name]
    large, reached = Gemm(8192, 28672, 4096), {"b200": 0.667, "b300": 0.667, "gb200": 0.72}.get(name, 0.75)
    expected = {"h200": 1.307, "h100": 1.343, "b200": 1.565, "h20": 0.679}.get(name, 1.0) * gpu.power.limit
    assert watts(gpu, large, large.work.flops / reached / gpu.flops[DType.BF16]) == pytest.approx(expected, rel=0.01)
    stream = Pointwise("copy", 0.92 * gpu.bandwidth, 0.0, 0.0, 1)
    assert gpu.power.idle < watts(gpu, stream, 1.0) < 1.04 * gpu.power.limit


@pytest.mark.parametrize("name", GPUS)
def test_clocks_end_at_the_boost_clock_and_lower_ones_never_cost_more(name):
    clocks = GPUS[name].power.clocks
    assert clocks.boost == pytest.approx(GPUS[name].clock)
    assert clocks.saved(clocks.boost) == clocks.slowed(clocks.boost) == 1
    falling = [clocks.boost - i * (clocks.boost - clocks.least) / 50 for i in range(51)]
    for high, low in itertools.pairwise(falling):
        assert clocks.saved(low) <= clocks.saved(high) and clocks.slowed(low) > clocks.slowed(high)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_system(name):
    system = SYSTEMS[GPUS[name].system]
    assert system.gpu == name
    assert system.inside.bandwidth == (GPUS[name].nvlink or GPUS[name].pcie)
    assert system.interconnect == ("nvlink" if GPUS[name].nvlink else "pcie")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_link_says_where_its_figures_come_from(name):
    system = SYSTEMS[name]
    assert system.source.startswith("https://")
    assert all(link.source for link in (system.inside, system.network, system.between_sockets) if link)
    assert evolve(system, nodes=2).gpus == 2 * system.gpus_per_node


@pytest.mark.parametrize("name, links, each", [
    ("hgx-a100", 12, 20e9), ("hgx-h100", 18, 20.6e9), ("hgx-h200", 18, 20.6e9), ("hgx-b200", 18, 40.1e9),
    ("gb200-nvl72", 18, 40.1e9)])
def test_nvlink_reaches_what_nccl_counts(name, links, each):
    inside = SYSTEMS[name].inside
    assert inside.bandwidth * inside.efficiency == pytest.approx(links * each, rel=1e-3)


#: Systems over whose links nothing was measured; there NCCL is priced by what it counts.
UNMEASURED = {"dgx-spark", "gh200", "nvl-h100", "nvl-h200", "pcie-a10g", "pcie-h100", "pcie-l4", "pcie-rtx-4090",
              "pcie-rtx-5090", "pcie-t4"}


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_name_what_was_measured_over_their_links(name):
    found = [structure(Transport, catalog.load("transports", other), other) for other in SYSTEMS[name].transports]
    others = 2 * name.startswith(("hgx-h", "hgx-b", "gb"))  # DeepEP's, and TensorRT-LLM's all-reduce
    between = name in ("hgx-h100", "hgx-h200", "hgx-h20", "hgx-h800", "hgx-b200")  # DeepEP's
    assert len(found) == (0 if name in UNMEASURED else 2 + others + between)
    assert all(transport.source.startswith(("AIConfigurator 095f58a", "DeepEP's own tables")) for transport in found)
    assert sum(bool(transport.network) for transport in found) == between
    protocols = [protocol for transport in found for protocol in transport.protocols]
    assert len(protocols) == len(set(protocols)), "one library each"


def test_transports_are_each_of_some_system():
    assert {name for system in SYSTEMS.values() for name in system.transports} == set(catalog.entries("transports"))


def test_a_protocol_is_for_messages_of_its_sizes():
    timing = structure(Timing, {"start": "5 us", "share": 0.5, "sizes": {"4": ["1 KiB", "1 MiB"]}}, "a test")
    assert (timing.window(4), timing.window(8)) == ((2**10, 2**20), (0, 0))
    assert evolve(timing, sizes={}).window(8) == (0, float("inf"))


def test_pairs_and_groups_of_eight_reach_a_share_of_their_own():
    timing = Timing(start=0, share=0.5, pair=0.8, pair_reduce=0.9, eight=1.2)
    reached = [timing.reached(kind, ranks) for kind, ranks in (
        ("all_reduce", 2), ("all_gather", 2), ("all_reduce", 4), ("all_reduce", 8), ("all_reduce", 16))]
    assert reached == pytest.approx([0.45, 0.4, 0.5, 0.6, 0.5])


@pytest.mark.parametrize("changes, problem", [
    ({"nodes": 2, "network": None}, "system 'pair' has 2 nodes but no [network] between them"),
    ({"sockets": 2}, "system 'pair' has 2 sockets but no [between_sockets] link"),
    ({"sockets": 3, "between_sockets": Link(1e9)}, "2 GPUs do not divide over 3 sockets"),
    ({"interconnect": "wire"}, "'interconnect' must be in ('nvlink', 'pcie') (got 'wire')"),
    ({"leaf": Leaf(4)}, "system 'pair' has [leaf] switches but no [network] that they join"),
])
def test_impossible_systems_are_refused(changes, problem):
    pair = {"name": "pair", "gpu": "l4", "gpus_per_node": 2, "interconnect": "pcie", "inside": Link("32 GB/s")}
    with pytest.raises(ValueError) as error:
        System(**{**pair, **changes})
    assert error.value.args[0] == problem
