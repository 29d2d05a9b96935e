"""Latency targets: what a share of requests, or the mean of all, has to keep."""

import re

from attrs import field, frozen

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.foundation.units import measured
from ksim.results.metrics import LATENCIES

_FORM = "METRIC:STATISTIC:LIMIT, such as ttft:p99:1s or tpot:mean:50ms"
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
#: Requests of a run that may miss a percentile, at the least number of requests that a run should have, or must have.
_MISSES, _LEAST_MISSES = 10, 2
#: The fewest that a run should have; with fewer, the beginning and the end of a run are too large a part of it.
_FEWEST = 1000


@frozen
class Target:
    """A `statistic` (median, mean, p99, p99.9, ...) of a latency `metric` that may not exceed `limit` seconds.

    Two targets are equal if they say the same, however they are typed.
    """

    metric: str
    statistic: str
    limit: float
    text: str = field(default="", eq=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse ``ttft:p99:1s`` as of ``--slo``; raises ConfigError, and UnknownName for an unknown metric."""
        parts = text.strip().split(":")
        if len(parts) != 3:
            raise ConfigError("--slo", f"expected {_FORM}, not {text!r}")
        metric, statistic, limit = (part.strip() for part in parts)
        if metric not in LATENCIES:
            raise UnknownName("latency", metric, LATENCIES)
        if statistic not in ("mean", "median") and not _share_of(statistic):
            raise ConfigError("--slo", f"{statistic!r} is no statistic; expected mean, median, or a percentile such as"
                                       f" p99 or p99.9")
        return cls(metric, statistic, _seconds(limit), text.strip())

    @property
    def share(self) -> float | None:
        """The share of requests that have to keep the limit: 0.99 of p99; None for a mean."""
        return None if self.statistic == "mean" else 0.5 if self.statistic == "median" else _share_of(self.statistic)

    @property
    def allowed(self) -> float:
        """What the mean over requests of what counts may be: misses for a percentile, seconds for a mean."""
        return self.limit if self.share is None else 1 - self.share

    @property
    def requests(self) -> int:
        """How many requests a run should have, so that ten may miss the limit; a thousand at least."""
        return max(_FEWEST, round(_MISSES / self.allowed)) if self.share is not None else _FEWEST

    @property
    def least_requests(self) -> int:
        """How many it has to have, so that two may miss."""
        return round(_LEAST_MISSES / self.allowed) if self.share is not None else 50

    def __str__(self) -> str:
        return self.text or f"{self.metric}:{self.statistic}:{self.limit:g}s"


def _share_of(statistic: str) -> float | None:
    """0.99 of p99; None for what is no percentile between 0 and 100."""
    match = _PERCENTILE.fullmatch(statistic)
    share = round(float(match[1]) / 100, 12) if match else 0.0
    return share if 0 < share < 1 else None


def _seconds(text: str) -> float:
    try:
        limit = measured(text, "s")
    except ValueError as error:
        raise ConfigError("--slo", str(error)) from None
    if limit <= 0:
        raise ConfigError("--slo", f"a limit has to be more than 0 s, not {text!r}")
    return limit
