"""Prometheus' answers to range queries of vLLM's counters: arrivals and lengths are drawn from what they count.

https://prometheus.io/docs/prometheus/latest/querying/api/#range-queries
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from ksim.foundation.rng import stream
from ksim.workload.counters import QUERY, Floats, Increases, increases, lengths
from ksim.workload.jsonl import documents, keys
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, listed

__all__ = ["Prometheus"]

#: The most requests in one file; more are an error.
_MOST = 10**7
Whole = NDArray[np.int64]
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


def _requests(grown: Increases, lines: Lines) -> Whole:
    """How many requests ended in each interval."""
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
    """How the lengths of the requests of an interval are drawn."""
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
