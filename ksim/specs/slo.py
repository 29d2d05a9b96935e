"""Latency targets."""

from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.foundation.units import Seconds, optional_quantity

_TARGET = optional(gt(0))


@frozen
class Slo:
    """Latency targets in seconds: to the first token, per token after it, and to the last; None sets no target."""

    ttft: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time to first token, at most. Unit: s. Default: no target. Example: "200 ms"."""
    tpot: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time per output token after the first, at most. Unit: s. Default: no target. Example: "15 ms"."""
    e2el: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time from arrival to last token, at most. Unit: s. Default: no target. Example: "30 s"."""
