"""vLLM's MooncakeConnector: the prefill engine writes the KV into blocks that the decode engine has ready."""

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import quantity

__all__ = ["Mooncake"]


@frozen
class Mooncake:
    """P and D get a request at once.  D allocates and tells P; once it has prefilled, P writes all that D lacks.

    P gives up after `abort_request_timeout`.  `start` and `share` fit Qwen3-8B TP8 between nodes of 8 H800 with
    200 GB/s of NICs, every second row of Mooncake's benchmark of vLLM 0.11.2 (docs/network.md).
    """

    alias: ClassVar[str] = "MooncakeConnector"
    concurrent: ClassVar[bool] = True
    by_chunk: ClassVar[bool] = False
    pull: ClassVar[bool] = False
    hands_over_token: ClassVar[bool] = False
    equal_tensor_parallel: ClassVar[bool] = True
    renews: ClassVar[bool] = False

    abort_request_timeout: float = field(default=480.0, converter=quantity, validator=gt(0))
    start: float = field(default=0.40e-3, converter=quantity, validator=ge(0))
    share: float = field(default=0.742, validator=(gt(0), le(1)))
    #: Of no effect on times: how Mooncake is built.
    num_workers: int = 10
    mooncake_protocol: str = "rdma"

    @property
    def lease(self) -> float:
        return self.abort_request_timeout
