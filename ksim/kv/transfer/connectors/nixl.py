"""vLLM's NixlConnector: the decode engine reads the KV once the prefill engine has answered."""

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import quantity

__all__ = ["Nixl"]


@frozen
class Nixl:
    """D gets a request with P's answer, allocates, and reads all blocks that it lacks; it computes one token again.

    P holds the blocks until they are read, or until the lease of `kv_lease_duration` ends.  While D has the request it
    prolongs the lease by two thirds of that, six times in as long, so the lease only ends before D has the request
    (vLLM 0.33, nixl/base_worker.py and base_scheduler.py).

    Nobody has published NIXL's times alone: `start` and `share` are those of Mooncake under vLLM on H800 (see
    mooncake.py), which moves blocks of the same size over the same RDMA.
    """

    alias: ClassVar[str] = "NixlConnector"
    concurrent: ClassVar[bool] = False
    by_chunk: ClassVar[bool] = False
    pull: ClassVar[bool] = True
    hands_over_token: ClassVar[bool] = False
    equal_tensor_parallel: ClassVar[bool] = False
    renews: ClassVar[bool] = True

    kv_lease_duration: float = field(default=30.0, converter=quantity, validator=gt(0))
    start: float = field(default=0.40e-3, converter=quantity, validator=ge(0))
    share: float = field(default=0.742, validator=(gt(0), le(1)))
    #: Of no effect on times: how NIXL is built.
    backends: tuple[str, ...] = ("UCX",)
    num_threads: int = 4
    enforce_handshake_compat: bool = True

    @property
    def lease(self) -> float:
        return self.kv_lease_duration
