"""Transport protocols: what a message pays to start, for each hop, and in bandwidth.

NCCL's values are those of its own tuning model (src/graph/tuning.cc, master of June 2026, single-node
bases and hops); LL's share is its cap of 87.7, 141 and 282 GB/s on A100, Hopper and Blackwell over their
NVLink buses of 240, 371 and 722 GB/s.  The peer protocol, GPUs reading each other's memory as vLLM's custom
all-reduce does, is fitted to public measurements on H200 (AIConfigurator 095f58a, vLLM in CUDA graphs,
2 to 8 GPUs, 256 B to 8 MiB).
"""

from collections.abc import Mapping

from attrs import field, frozen


@frozen
class Protocol:
    """`start` once and `hop` for each round, in seconds; `share` of the links' bandwidth."""

    name: str
    start: float
    hop: Mapping[str, float] = field(hash=False)
    share: float


NCCL = (
    Protocol("LL", 6.6e-6, {"nvlink": 0.6e-6, "pcie": 1.0e-6, "network": 2.7e-6}, share=0.38),
    Protocol("LL128", 14.0e-6, {"nvlink": 1.9e-6, "pcie": 2.5e-6, "network": 4.0e-6}, share=0.92),
    Protocol("Simple", 8.4e-6, {"nvlink": 3.4e-6, "pcie": 5.7e-6, "network": 14.0e-6}, share=1.0),
)
PEER = (Protocol("peer", 3.4e-6, {"nvlink": 1.0e-6}, share=0.85),)
