"""Connectors with which engines send each other KV."""

from math import inf
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import quantity

__all__ = ["Mooncake", "Nixl", "Sglang", "TensorrtLlm"]


@frozen
class Mooncake:
    """vLLM's MooncakeConnector: the prefill engine writes the KV into blocks that the decode engine has ready.

    P and D get a request at once.  D allocates and tells P; once it has prefilled, P writes all that D lacks.

    P gives up after `abort_request_timeout`.  `start` and `share` fit Qwen3-8B TP8 between nodes of 8 H800 with
    200 GB/s of NICs, every second row of Mooncake's benchmark of vLLM 0.11.2 (docs/fleets.md).
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


@frozen
class Nixl:
    """vLLM's NixlConnector: the decode engine reads the KV once the prefill engine has answered.

    D gets a request with P's answer, allocates, and reads all blocks that it lacks; it computes one token again.

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


@frozen
class Sglang:
    """SGLang's disaggregation: KV leaves chunk by chunk behind chunked prefill.

    P and D get a request at once.  D allocates first; P waits for that, and writes each chunk once it is computed.

    P's token is the user's first one: D's first step computes the second (SGLang, disaggregation/prefill.py and
    decode.py).  P holds its blocks until all are written.  `start` and `share` fit Qwen3-235B TP8 between nodes of 8
    H20 with 200 GB/s of NICs, every second row of Mooncake's benchmark of SGLang (docs/fleets.md).
    """

    alias: ClassVar[str] = "SGLangConnector"
    concurrent: ClassVar[bool] = True
    by_chunk: ClassVar[bool] = True
    pull: ClassVar[bool] = False
    hands_over_token: ClassVar[bool] = True
    equal_tensor_parallel: ClassVar[bool] = False
    renews: ClassVar[bool] = False
    lease: ClassVar[float] = inf

    start: float = field(default=1.79e-3, converter=quantity, validator=ge(0))
    share: float = field(default=0.846, validator=(gt(0), le(1)))


@frozen
class TensorrtLlm:
    """TensorRT-LLM's disaggregated serving: a context server, then a generation server that pulls.

    The generation server D gets a request with the first token of the context server P, allocates, and reads.

    D computes nothing again: its first step computes the second token.  P holds its blocks until they are read
    (TensorRT-LLM, cache transceiver and py_executor.py).  Nobody has published its transfer's times alone: `start` and
    `share` are those of mooncake.py.
    """

    alias: ClassVar[str] = "TensorRTLLMConnector"
    concurrent: ClassVar[bool] = False
    by_chunk: ClassVar[bool] = False
    pull: ClassVar[bool] = True
    hands_over_token: ClassVar[bool] = True
    equal_tensor_parallel: ClassVar[bool] = False
    renews: ClassVar[bool] = False
    lease: ClassVar[float] = inf

    start: float = field(default=0.40e-3, converter=quantity, validator=ge(0))
    share: float = field(default=0.742, validator=(gt(0), le(1)))
