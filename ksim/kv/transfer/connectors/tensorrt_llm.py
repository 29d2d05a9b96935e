"""TensorRT-LLM's disaggregated serving: a context server, then a generation server that pulls."""

from math import inf
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import quantity

__all__ = ["TensorRtLlm"]


@frozen
class TensorRtLlm:
    """The generation server D gets a request with the first token of the context server P, allocates, and reads.

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
