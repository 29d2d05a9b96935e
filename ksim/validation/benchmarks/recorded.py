"""What a benchmark's result says, in one form for all clients: requests where they are recorded, figures where not."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Latencies: to the first token, per token after it (of a request), between two tokens, to the last token.
LATENCIES = ("ttft", "tpot", "itl", "e2el")
#: Statistics of a latency, by their names in figures.
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Requests and tokens per second.
RATES = ("request_throughput", "output_throughput", "total_token_throughput")


@frozen
class Served:
    """A request that was answered, in seconds; None where the result does not say.

    `arrival` is when the client had the request, and `sent` when it sent it, which is later where the client keeps to a
    concurrency; latencies are from then.  `queue` is the server's own measurement.  `gaps` are the times between the
    parts of a stream, which may carry more than one token.
    """

    prompt: int
    output: int
    ttft: float | None = None
    e2e: float | None = None
    arrival: float | None = None
    sent: float | None = None
    queue: float | None = None
    gaps: tuple[float, ...] = ()

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an output of one token."""
        if self.output < 2 or self.ttft is None or self.e2e is None:
            return None
        return (self.e2e - self.ttft) / (self.output - 1)


@frozen
class Lengths:
    """Lengths that are known as a whole only: their mean, and quantiles by share from 0 to 1."""

    mean: float
    quantiles: Mapping[float, float] = field(factory=dict)

    def of(self, count: int, rng: "np.random.Generator") -> list[int]:
        """*count* lengths, spread evenly over the quantiles in an order drawn from *rng*; all alike without them."""
        if len(self.quantiles) < 3 or len(set(self.quantiles.values())) == 1:
            return [max(1, round(self.mean))] * count
        shares = sorted(self.quantiles)
        places = (np.arange(count) + 0.5) / count
        lengths = np.interp(places, shares, [self.quantiles[share] for share in shares])
        return [max(1, round(length)) for length in rng.permutation(lengths).tolist()]


@frozen
class Load:
    """How the client sent: at a `rate` (requests/s; None at once), with `concurrency` requests in flight at most."""

    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0

    def __str__(self) -> str:
        parts = [f"{self.rate:g} requests/s"] if self.rate else []
        parts += [f"concurrency {self.concurrency}"] if self.concurrency else []
        return ", ".join(parts) or "as recorded"


@frozen
class Recorded:
    """A run of a benchmark, as its result describes it.

    `served` has its requests in the order of the file, if they are recorded; else there are `count` requests with
    `prompts` and `outputs`.  Of a run that ended before all its requests did, so many are `incomplete`; `unfinished`
    has those that were sent, with lengths that are known or taken from the others.  `reported` are figures of the
    client's own, in seconds and per second.  `facts` are other words of the file: the model, GPUs, tensor parallelism.
    """

    path: Path
    name: str
    tool: str
    count: int
    failed: int = 0
    served: Sequence[Served] = ()
    prompts: Lengths | None = None
    outputs: Lengths | None = None
    load: Load = Load()
    duration: float | None = None
    reported: Mapping[str, float] = field(factory=dict)
    facts: Mapping[str, Any] = field(factory=dict)
    remarks: tuple[str, ...] = ()
    incomplete: int = 0
    unfinished: Sequence[Served] = ()

    @cached_property
    def figures(self) -> dict[str, float]:
        """The figures of the run: from its requests where they are recorded, else those that the client reports."""
        computed = figures_of(self.served, self.duration, bool(self.incomplete)) if self.served else {}
        return {**{name: value for name, value in self.reported.items() if name not in computed}, **computed}


def figures_of(served: Sequence[Served], duration: float | None = None, cut: bool = False) -> dict[str, float]:
    """Statistics of *served*, in seconds, and rates from the first to the last of them, or else over *duration*.

    Of a run that was *cut*, rates are over its whole duration.
    """
    values: dict[str, Iterable[float | None]] = {
        "ttft": (one.ttft for one in served), "tpot": (one.tpot for one in served),
        "itl": (gap for one in served for gap in one.gaps), "e2el": (one.e2e for one in served)}
    figures = {name: value for latency, numbers in values.items()
               for name, value in statistics(latency, [number for number in numbers if number is not None]).items()}
    return figures | rates(served, duration if cut else span(served) or duration)


def statistics(latency: str, values: Sequence[float]) -> dict[str, float]:
    """The statistics of a latency; none without values."""
    if not values:
        return {}
    return {f"{latency}_{name}": float(np.mean(values) if name == "mean" else np.percentile(values, int(name[1:])))
            for name in STATISTICS}


def rates(served: Sequence[Served], seconds: float | None) -> dict[str, float]:
    """Requests and tokens per second over *seconds*; none if these are not known."""
    if not seconds:
        return {}
    outputs = sum(one.output for one in served)
    return dict(zip(RATES, (len(served) / seconds, outputs / seconds,
                            (outputs + sum(one.prompt for one in served)) / seconds), strict=True))


def span(served: Sequence[Served]) -> float | None:
    """Seconds from the first request to the last token; None where these times are not recorded."""
    if any(one.sent is None or one.e2e is None for one in served) or not served:
        return None
    return max((one.sent or 0) + (one.e2e or 0) for one in served) - min(one.sent or 0 for one in served)
