"""SGLang's disaggregation: KV leaves chunk by chunk behind chunked prefill."""

from math import inf
from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import quantity

__all__ = ["Sglang"]


@frozen
class Sglang:
    """P and D get a request at once.  D allocates first; P waits for that, and writes each chunk once it is computed.

    P's token is the user's first one: D's first step computes the second (SGLang, disaggregation/prefill.py and
    decode.py).  P holds its blocks until all are written.  `start` and `share` fit Qwen3-235B TP8 between nodes of 8
    H20 with 200 GB/s of NICs, every second row of Mooncake's benchmark of SGLang (docs/network.md).
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
