"""Counters and histograms of vLLM in the answers of Prometheus to range queries."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.workload.lines import Lines
from ksim.workload.rows import listed, shown

Floats = NDArray[np.float64]
#: What a query that gets everything looks like, for messages.
QUERY = ('{__name__=~"vllm:(request_success|prompt_tokens|generation_tokens)_total|'
         'vllm:request_(prompt|generation)_tokens_.*"}')
#: How long the last bucket of a histogram, which has no end, is taken to be: as many times its start.
_OPEN = 2.0


@frozen
class Increases:
    """By how much counters grew in each interval between two of `times` (seconds), by name and upper end of a bucket.

    Counters without buckets have the end nan.
    """

    times: Floats
    grown: Mapping[str, Mapping[float, Floats]]

    def of(self, *names: str) -> Floats | None:
        """The growth of the first of *names* that there is; None without any."""
        for name in names:
            if ends := self.grown.get(name):
                whole = [grown for end, grown in ends.items() if math.isnan(end)]
                total: Floats = np.sum(whole, axis=0) if whole else ends[max(ends)]
                return total
        return None

    def buckets(self, name: str) -> tuple[Floats, Floats] | None:
        """The upper ends of a histogram's buckets, and the growth of each in each interval; None without it."""
        ends = sorted(end for end in self.grown.get(name, {}) if not math.isnan(end))
        if not ends:
            return None
        counts = np.diff(np.stack([self.grown[name][end] for end in ends]), axis=0, prepend=0.0)
        return np.array(ends), np.maximum(counts, 0.0)


def increases(documents: Iterable[Mapping[str, Any]], lines: Lines) -> Increases:
    """How the counters of *documents*, range queries' answers, grew; raises DataError for what is none."""
    series = [one for document in documents for one in _series(document, lines)]
    times = sorted({time for _, _, samples in series for time in samples})
    if len(times) < 2:
        raise lines.error(f"has {len(times)} times; a range with at least two is needed (query_range)")
    place = {time: number for number, time in enumerate(times)}
    grown: dict[str, dict[float, Floats]] = {}
    for name, end, samples in series:
        total = grown.setdefault(name, {}).setdefault(end, np.zeros(len(times) - 1))
        before = None
        for time in sorted(samples):
            value = samples[time]
            if before is not None:  # a counter that shrinks began anew, with the server
                total[place[time] - 1] += value - before if value >= before else value
            before = value
    return Increases(np.array(times), grown)


def _series(document: Mapping[str, Any], lines: Lines) -> Iterator[tuple[str, float, dict[float, float]]]:
    """The name, bucket and samples of each series in an answer."""
    data = document.get("data")
    if document.get("status") == "error" or not isinstance(data, Mapping):
        said = shown(document.get("error", document.get("status")))
        raise lines.error(f"is no answer with data: Prometheus says {said}")
    result = data.get("result")
    if data.get("resultType") != "matrix" or not isinstance(result, list):
        raise lines.error(f"resultType is {shown(data.get('resultType'))}; expected a matrix, as query_range answers")
    for member in result:
        labels = member.get("metric") if isinstance(member, Mapping) else None
        if not isinstance(labels, Mapping) or not isinstance(member.get("values"), list):
            raise lines.error("has a series without metric or values; is the file cut short?")
        samples = dict(_sample(pair, lines) for pair in member["values"])
        known = {time: value for time, value in samples.items() if not math.isnan(value)}
        yield _name(labels, lines), _end(labels.get("le"), lines), known


def _name(labels: Mapping[str, Any], lines: Lines) -> str:
    """The name of a series with one colon or none, and without its ending."""
    name = labels.get("__name__")
    if not isinstance(name, str):
        raise lines.error(f"has a series without a name, {listed(labels) or 'no labels'}: query the counters"
                          f" themselves, without rate(), increase() or sum(): {QUERY}")
    return name.replace(":", "_", 1).removesuffix("_total").removesuffix("_bucket")


def _sample(pair: Any, lines: Lines) -> tuple[float, float]:
    try:
        time, value = float(pair[0]), float(pair[1])
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        raise lines.error(f"has the sample {shown(pair)}; expected [time, \"value\"]") from None
    if not 0 <= time < 1e12 or value < 0 or value > 1e15:
        raise lines.error(f"has the sample {shown(pair)}; expected seconds since 1970 and a counter")
    return time, value


def _end(text: Any, lines: Lines) -> float:
    if text is None:
        return math.nan
    try:
        return float(text)
    except (TypeError, ValueError):
        raise lines.error(f"has a bucket that ends at {shown(text)}; expected a number or +Inf") from None


def lengths(ends: Floats, counts: Floats, mean: float | None) -> "Buckets":
    """How to draw lengths from buckets: *counts* of each in all, and the *mean* that they have if it is known."""
    low = np.concatenate([[0.0], ends[:-1]])
    high = np.where(np.isinf(ends), np.maximum(_OPEN * low, 1.0), ends)
    total, width = counts.sum(), float((counts * (high - low)).sum())
    middle = 0.5 if mean is None or not width else (mean * total - float((counts * low).sum())) / width
    return Buckets(low, high, counts, 1.0 / min(max(middle, 0.02), 0.98) - 1.0)


@frozen
class Buckets:
    """Buckets of lengths, in each of which lengths are low + (high - low) u^power, with u even from 0 to 1.

    The mean of u^power is 1 / (power + 1), so a power gives the lengths of all buckets any mean that they can have.
    """

    low: Floats
    high: Floats
    counts: Floats
    power: float

    def draw(self, counts: Floats, number: int, rng: "np.random.Generator") -> Sequence[int]:
        """*number* lengths from buckets that grew by *counts*; from all the time's where none did."""
        weights = counts if counts.sum() > 0 else self.counts
        rows = rng.choice(len(weights), number, p=weights / weights.sum())
        places = rng.random(number) ** self.power
        drawn: list[int] = np.maximum(1, np.ceil(self.low[rows] + (self.high - self.low)[rows] * places)).astype(
            int).tolist()
        return drawn
