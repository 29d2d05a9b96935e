"""Prometheus' answers to range queries of vLLM's counters: arrivals and lengths are drawn from what they count.

https://prometheus.io/docs/prometheus/latest/querying/api/#range-queries
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from ksim.foundation.rng import stream
from ksim.workload.jsonl import documents, keys
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, listed, shown

__all__ = ["Prometheus"]

#: The most requests in one file; more are an error.
_MOST = 10**7
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
_Draw = Callable[[int, int, "np.random.Generator"], Sequence[int]]


@frozen
class Prometheus:
    """Draws as many requests in each interval as `vllm:request_success_total` counts, as a Poisson process.

    Lengths are drawn from the buckets of `vllm:request_prompt_tokens` and
    `vllm:request_generation_tokens` that grew in the interval, with the mean that
    their sums, or the counters of tokens, say.  Without buckets, all requests of an
    interval have its mean.  Requests are counted when they end.
    """

    seed: int = field(default=0, validator=ge(0))

    example = (
        '{"status": "success", "data": {"resultType": "matrix", "result": ['
        '{"metric": {"__name__": "vllm:request_success_total", "finished_reason": "stop"}, "values": '
        '[[1795000000, "100"], [1795000015, "104"], [1795000030, "110"]]}]}}\n'
        '{"status": "success", "data": {"resultType": "matrix", "result": ['
        '{"metric": {"__name__": "vllm:request_prompt_tokens_bucket", "le": "100"}, "values": '
        '[[1795000000, "60"], [1795000015, "62"], [1795000030, "65"]]}, '
        '{"metric": {"__name__": "vllm:request_prompt_tokens_bucket", "le": "+Inf"}, "values": '
        '[[1795000000, "100"], [1795000015, "104"], [1795000030, "110"]]}, '
        '{"metric": {"__name__": "vllm:generation_tokens_total"}, "values": '
        '[[1795000000, "9000"], [1795000015, "9200"], [1795000030, "9500"]]}]}}\n'
    )
    time_unit = "dates"
    empty = "skip"

    @property
    def remark(self) -> str:
        return (f"requests are drawn from Prometheus' counters with seed {self.seed}: at random within each interval"
                " (Poisson), counted when they end, with lengths independent of each other and of prefixes")

    def recognises(self, first: str) -> bool:
        return {"resultType", "result"} <= keys(first)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        lines.dates = True
        grown = increases(documents(lines), lines)
        requests = _requests(grown, lines)
        prompts, outputs = (_drawer(grown, requests, kind, lines) for kind in ("prompt", "generation"))
        rng = stream(self.seed, "workload.prometheus")
        for interval, number in enumerate(requests.tolist()):
            begin, end = grown.times[interval: interval + 2] - grown.times[0]
            times = np.sort(rng.uniform(begin, end, number)).tolist()
            rows = zip(times, prompts(interval, number, rng), outputs(interval, number, rng), strict=True)
            yield from (Row(time, prompt, output) for time, prompt, output in rows)


#: A query that gets all counters, for messages.
QUERY = ('{__name__=~"vllm:(request_success|prompt_tokens|generation_tokens)_total|'
         'vllm:request_(prompt|generation)_tokens_.*"}')
#: The end of the last bucket of a histogram, which is open, over its start.
_OPEN = 2.0


@frozen
class Increases:
    """The growth of counters in each interval between two of `times` (seconds), by name and upper end of a bucket.

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
    """The growth of the counters of *documents*, range queries' answers; raises DataError for other documents."""
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
        reason = shown(document.get("error", document.get("status")))
        raise lines.error(f"is no answer with data: Prometheus says {reason}")
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
    """Buckets to draw lengths from: *counts* of each in all, and the *mean* of the lengths if it is known."""
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


def _requests(grown: Increases, lines: Lines) -> Whole:
    """The number of requests that ended in each interval."""
    counted = grown.of("vllm_request_success", "vllm_request_prompt_tokens_count", "vllm_request_prompt_tokens",
                       "vllm_request_generation_tokens_count", "vllm_request_generation_tokens")
    if counted is None:
        raise lines.error(f"has no counter of requests, only {listed(grown.grown) or 'nothing'}; query all that is"
                          f" needed: {QUERY}")
    if not 1 <= counted.sum() <= _MOST:
        raise lines.error(f"counts {counted.sum():,.0f} requests; expected 1 to {_MOST:,}")
    # Rounding what has come so far, and not each interval, keeps the sum.
    so_far: Whole = np.round(np.cumsum(counted)).astype(np.int64)
    grown_by: Whole = so_far - np.concatenate([[0], so_far[:-1]])
    return grown_by


def _drawer(grown: Increases, requests: Whole, kind: str, lines: Lines) -> _Draw:
    """A function that draws the lengths of the requests of an interval."""
    tokens = grown.of(f"vllm_request_{kind}_tokens_sum", f"vllm_{kind}_tokens")
    histogram = grown.buckets(f"vllm_request_{kind}_tokens")
    if histogram is not None and histogram[1].sum() > 0:
        ends, counts = histogram
        total = counts.sum()
        buckets = lengths(ends, counts.sum(axis=1), float(tokens.sum() / total) if tokens is not None else None)
        return lambda interval, number, rng: buckets.draw(counts[:, interval], number, rng)
    if tokens is None or not tokens.sum():
        raise lines.error(f"says nothing of the lengths: it lacks vllm:request_{kind}_tokens_bucket and"
                          f" vllm:{kind}_tokens_total; query {QUERY}")
    return lambda interval, number, rng: [_mean(tokens, requests, interval)] * number


def _mean(tokens: Floats, requests: Whole, interval: int) -> int:
    """The mean tokens of the requests of an interval; of all where it has tokens of none, or none of its requests'."""
    here = tokens[interval] / max(int(requests[interval]), 1)
    return max(1, round(float(here or tokens.sum() / max(int(requests.sum()), 1))))
