"""90 % intervals of the time of a collective, as factors of its price, by protocol and link."""

from collections.abc import Mapping, Set

__all__ = ["FITTED", "UNFITTED", "interval_factors"]

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
    each = [FITTED.get((protocol, link), UNFITTED[link]) if fitted else UNFITTED[link] for link in links]
    return min(low for low, _ in each), max(high for _, high in each)
