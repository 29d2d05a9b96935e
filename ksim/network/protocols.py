"""Transport protocols: the cost of a message's start, hops and bandwidth over each kind of link, and its 90 % interval.

Where a system names no `transports` that were measured, NCCL's values are those of its own tuning model
(src/graph/tuning.cc, master of June 2026, single-node bases and hops); LL's share is its cap of 87.7, 141 and
282 GB/s on A100, Hopper and Blackwell over their NVLink buses of 240, 371 and 722 GB/s.  GPUs that read each
other's memory, as vLLM's all-reduce does, then have what H200 took before one-shot and two-shot were told apart
(AIConfigurator 095f58a, 2 to 8 GPUs, 256 B to 8 MiB).  What only a switch that adds can do has no such values:
it is there where it was measured.
"""

from collections.abc import Iterable, Mapping, Set

from attrs import evolve, frozen

from ksim.foundation.errors import UnknownName
from ksim.specs.hardware import System, Timing, Transport


@frozen
class Protocol:
    """What is paid over each kind of link that carries it.

    `merging` protocols let the switch add pieces up and copy them, so that each passes a GPU's link once a round.
    One of a `kind` is for collectives of that kind alone.
    """

    name: str
    links: Mapping[str, Timing]
    merging: bool = False
    kind: str = ""


def _nccl(name: str, start: float, hops: tuple[float, float, float], share: float) -> Protocol:
    return Protocol(name, {link: Timing(start, share, hop)
                           for link, hop in zip(("nvlink", "pcie", "network"), hops, strict=True)})


_LL = (6.6e-6, (0.6e-6, 1.0e-6, 2.7e-6), 0.38)
_SIMPLE = (8.4e-6, (3.4e-6, 5.7e-6, 14.0e-6), 1.0)
#: Of rings.
NCCL = (_nccl("LL", *_LL), _nccl("LL128", 14.0e-6, (1.9e-6, 2.5e-6, 4.0e-6), 0.92), _nccl("Simple", *_SIMPLE))
#: Of grouped sends and receives, which LL128 is not for.
POINT_TO_POINT = (_nccl("p2p-LL", *_LL), _nccl("p2p-Simple", *_SIMPLE))
NVLS = (Protocol("NVLS", {}, merging=True),)
#: Those that can be told how many SMs to take: NCCL's rings have a channel on each.  So has NVLS, but nobody says what
#: one of its channels carries; vLLM's kernels have as many thread blocks as they have.
BY_CHANNEL = frozenset(protocol.name for protocol in (*NCCL, *POINT_TO_POINT))

_LIMIT, _KIB = 8 * 2**20, 2**10
#: vLLM's rule: one round for two GPUs, for four below 512 KiB and for more below 256 KiB; nothing from 8 MiB.
ONE_SHOT = (Protocol("one-shot", {"nvlink": Timing(3.4e-6, 0.85, 1.0e-6, sizes={
    2: (0, _LIMIT), 4: (0, 512 * _KIB), 6: (0, 256 * _KIB), 8: (0, 256 * _KIB)})}),)
TWO_SHOT = (Protocol("two-shot", {"nvlink": Timing(3.4e-6, 0.85, 1.0e-6, sizes={
    4: (512 * _KIB, _LIMIT), 6: (256 * _KIB, _LIMIT), 8: (256 * _KIB, _LIMIT)})}),)
SYMMETRIC = (Protocol("symmetric", {}, merging=True),)
#: TensorRT-LLM's all-reduce, there where it was measured.
FUSED = (Protocol("fused", {}),)
FUSED_TWO_SHOT = (Protocol("fused-two-shot", {}),)
#: DeepEP's kernels, there where they were measured.
DEEPEP = tuple(Protocol(f"deepep-{kind}", {}, kind=kind) for kind in (
    "dispatch", "combine", "low_latency_dispatch", "low_latency_combine"))


def measured(system: System, transports: Iterable[Transport]) -> dict[str, Protocol]:
    """Protocols as measured over links inside a node of *system*; over all others they remain what they are.

    Raises UnknownName for a protocol that there is not.
    """
    known = {protocol.name: protocol for protocol in (
        *NCCL, *POINT_TO_POINT, *NVLS, *ONE_SHOT, *TWO_SHOT, *SYMMETRIC, *FUSED, *FUSED_TWO_SHOT, *DEEPEP)}
    protocols = {}
    for transport in transports:
        for name, timing in transport.protocols.items():
            if name not in known:
                raise UnknownName("protocol", name, list(known))
            protocols[name] = evolve(known[name], links={**known[name].links, system.interconnect: timing})
    return protocols


#: Where transports were measured: the 5 and 95 % quantiles of measured over predicted, over all rows of AIConfigurator
#: 095f58a (NCCL's collectives, and vLLM's all-reduce while it does not leave it to NCCL) that are priced by the
#: protocol.  They are the rows that it was fitted to.  Fitted to one GPU alone, NCCL's intervals hold 85 to 91 % of the
#: times of another of the same NVLink generation (H100 and H200, B200 and its kin); PCIe boxes differ by far more.
FITTED: Mapping[tuple[str, str], tuple[float, float]] = {
    ("LL", "nvlink"): (0.94, 1.12),  # 700 rows
    ("LL128", "nvlink"): (0.89, 1.28),  # 1,220
    ("Simple", "nvlink"): (0.92, 1.10),  # 835
    ("NVLS", "nvlink"): (0.88, 1.16),  # 56
    ("p2p-LL", "nvlink"): (0.86, 1.33),  # 417
    ("p2p-Simple", "nvlink"): (0.87, 1.16),  # 558
    ("one-shot", "nvlink"): (0.93, 1.06),  # 228
    ("two-shot", "nvlink"): (0.92, 1.09),  # 35
    ("symmetric", "nvlink"): (0.95, 1.06),  # 43
    ("fused", "nvlink"): (0.90, 1.09),  # 234 rows of TensorRT-LLM's
    ("fused-two-shot", "nvlink"): (0.87, 1.11),  # 62
    ("LL", "pcie"): (0.86, 1.18),  # 101
    ("LL128", "pcie"): (0.88, 1.32),  # 82
    ("Simple", "pcie"): (0.83, 1.19),  # 195
    ("p2p-LL", "pcie"): (0.84, 1.19),  # 45
    ("p2p-Simple", "pcie"): (0.78, 1.20),  # 81
    ("one-shot", "pcie"): (0.95, 1.06),  # 30
    # DeepEP's with at least 128 experts and 4 of them a token; errors of the rest are up to threefold.
    ("deepep-dispatch", "nvlink"): (0.79, 1.40),  # 1,978
    ("deepep-combine", "nvlink"): (0.78, 1.26),  # 1,978
    ("deepep-low_latency_dispatch", "nvlink"): (0.82, 1.26),  # 792
    ("deepep-low_latency_combine", "nvlink"): (0.82, 1.11),  # 792
}
#: Where they were not: the same quantiles of what NCCL's own tuning model says of those rows, 4,223 over NVLink and 642
#: over PCIe.  Nothing was measured between nodes, so that is an assumption: NCCL's trees, which there are none of here,
#: are some times faster with small messages.
UNFITTED: Mapping[str, tuple[float, float]] = {"nvlink": (0.88, 1.91), "pcie": (0.70, 10.9), "network": (0.2, 2.0)}


def interval_factors(protocol: str, links: Set[str], fitted: bool) -> tuple[float, float]:
    """The factors for *protocol* over *links*: those of the least certain link."""
    factors = [FITTED.get((protocol, link), UNFITTED[link]) if fitted else UNFITTED[link] for link in links]
    return min(low for low, _ in factors), max(high for _, high in factors)
