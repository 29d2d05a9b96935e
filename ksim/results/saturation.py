"""Whether the queue kept growing, and then at which rate requests completed."""

from itertools import pairwise
from typing import Any

import numpy as np

from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.series import Series, waiting

#: The shortest queue that counts at the last arrival: in requests, or in prompt tokens for so many of the largest
#: steps.
_SHORTEST = 8
#: The growth that counts, if the queue never shrank: its length at the last arrival over the maximum of the first half.
_GROWTH = 1.5
#: The other rule: its length in square roots of the number of arrivals, and the mean of the last quarter over that of
#: any quarter before.  At the sustainable rate, a queue gets that long now and then; below it, it does not.  Tests were
#: a hundred runs of 400 (2,000) Poisson arrivals at one server with constant or exponential service, and at 32 servers
#: with exponential service.  Both rules together call, on average, so many of them saturated: 6 (1) at 0.9 times the
#: sustainable rate, 55 (92) at 1.1 times, 87 (100) at 1.2 times.
DRIFT, _RISE = 2.0, 1.1
#: Arrivals within a smaller share of the run count as simultaneous.
_SPREAD = 0.01
#: The fewest completions for a rate; the number of parts for its interval; Student's t for so many parts at 90 %.
_FEWEST, _PARTS, _STUDENT = 20, 10, 1.833
#: The shortest time to count in, in mean service times.  In less, most completions are those of the first batch: of
#: runs of two loads, three shorter ones told 1.3 to 7.1 requests/s where long ones tell 3.3 to 9.7; those of four longer ones
#: had it in their intervals.
_LIVES = 1.0

_RATES = ("sustainable_request_rate", "sustainable_request_rate_low", "sustainable_request_rate_high")
KEYS = ("waiting_at_last_arrival", "waiting_tokens_at_last_arrival", "saturated", *_RATES)


def saturation(history: History, closed: bool = False) -> dict[str, Any]:
    """The queue at the last arrival, whether it kept growing and, if so, the rate that the system sustains.

    The rate is in requests/s, with the ends of its 90 % interval.  Requests that all arrive together wait by design,
    so arrivals must take more than a hundredth of the run.  In a *closed* loop, where clients wait for responses
    before they send the next request, no queue can keep growing.
    """
    arrivals = history.requests.arrival
    found = {"waiting_at_last_arrival": 0, "waiting_tokens_at_last_arrival": 0, "saturated": False,
             **dict.fromkeys(_RATES)}
    if not len(arrivals):
        return found
    queue = waiting(history)
    waits, tokens = queue.at(arrivals), waiting(history, history.requests.prompt.astype(np.float64)).at(arrivals)
    found |= {"waiting_at_last_arrival": int(waits[-1]), "waiting_tokens_at_last_arrival": int(tokens[-1])}
    spread_out = arrivals[-1] - arrivals[0] > _SPREAD * history.duration
    full = _SHORTEST * float(history.steps.tokens.max(initial=1))
    found["saturated"] = bool(not closed and spread_out and (
        _never_shrank(waits, _SHORTEST) or drifted(waits) or _never_shrank(tokens, full)))
    return {**found, **sustained(history, queue)} if found["saturated"] else found


def _quarters(queue: Floats) -> list[float]:
    return [float(quarter.mean()) for quarter in np.array_split(queue, 4) if len(quarter)]


def _never_shrank(queue: Floats, least: float) -> bool:
    """Whether it ends at *least* or more, well above the first half, with no quarter's mean below the one before."""
    grew = queue[-1] >= least and queue[-1] > _GROWTH * queue[: (len(queue) + 1) // 2].max()
    return bool(grew) and all(later >= earlier for earlier, later in pairwise(_quarters(queue)))


def drifted(queue: Floats, drift: float = DRIFT) -> bool:
    """Whether *queue*, at each arrival so far, is longer than a stable one gets by chance.

    That is *drift* square roots of the number of arrivals, and more than any quarter before the last one.
    """
    *before, last = _quarters(queue)
    long = queue[-1] >= max(_SHORTEST, drift * np.sqrt(len(queue)))
    return bool(long) and last > _RISE * max(before, default=0.0)


def sustained(history: History, queue: Series) -> dict[str, float | None]:
    """The rate of completions while requests waited; None if there are too few, or requests waited too shortly.

    Counting begins one mean service time after the queue was last empty before the last arrival, so that all sequence
    slots have been taken and released.  It ends when the queue is empty.  The interval is Student's t over the counts
    in ten parts of that time.
    """
    requests, arrivals = history.requests, history.requests.arrival
    empty = queue.times[queue.values <= 0]
    begin = max(empty[empty < arrivals[-1]], default=float(arrivals[0]))
    end = min(empty[empty >= arrivals[-1]], default=history.duration)
    inside = requests.completed & (requests.admitted >= begin) & (requests.admitted <= end)
    service = float((requests.finished - requests.admitted)[inside].mean()) if inside.any() else 0.0
    begin += service
    ends = requests.finished[requests.completed]
    counts, _ = np.histogram(ends[(ends >= begin) & (ends <= end)], _PARTS, (begin, max(begin, end)))
    if counts.sum() < _FEWEST or end - begin <= _LIVES * service:
        return dict.fromkeys(_RATES)
    rates = counts * _PARTS / (end - begin)
    middle, reach = float(rates.mean()), _STUDENT * float(rates.std(ddof=1)) / _PARTS**0.5
    return dict(zip(_RATES, (middle, max(0.0, middle - reach), middle + reach), strict=True))
