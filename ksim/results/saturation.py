"""Did the queue grow without end?  Then latencies tell how long the run was, and completions what can be sustained."""

from itertools import pairwise
from typing import Any

import numpy as np

from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.series import Series, waiting

#: A shorter queue at the last arrival is no sign of anything; nor are fewer prompt tokens, in the largest steps there
#: were.
_SHORTEST = 8
#: How much longer than ever in the first half of the arrivals the queue must be at the last one, if it never shrank.
_GROWTH = 1.5
#: Or else: how long, in square roots of the number of arrivals, and how much longer in the last quarter than in any
#: before.  A queue that just holds its own wanders that far, now and then; a stable one does not.  Of a hundred runs of
#: 400 (2,000) Poisson arrivals each at one server with constant or exponential service, and at 32 with exponential,
#: both rules together call saturated on average 6 (1) at 0.9 times what can be served, 55 (92) at 1.1, 87 (100) at 1.2.
_DRIFT, _RISE = 2.0, 1.1
#: Arrivals over a smaller share of the run all come at once.
_SPREAD = 0.01
#: Completions that a rate needs; parts that its interval is found from, and Student's t of so many for 90 %.
_FEWEST, _PARTS, _STUDENT = 20, 10, 1.833

_RATES = ("sustainable_request_rate", "sustainable_request_rate_low", "sustainable_request_rate_high")
KEYS = ("waiting_at_last_arrival", "waiting_tokens_at_last_arrival", "saturated", *_RATES)


def saturation(history: History, closed: bool = False) -> dict[str, Any]:
    """How much waits when the last request arrives, whether that is a queue that kept growing, and if so, at what rate
    requests were completed meanwhile, in requests/s, with the ends of its 90 % interval.

    Requests that all arrive at once wait by design, so a queue needs arrivals
    over a hundredth of the run to count as growing.  In a *closed* loop, where
    clients wait for answers before they ask again, no queue can.
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
        _never_shrank(waits, _SHORTEST) or _drifted(waits) or _never_shrank(tokens, full)))
    return {**found, **sustained(history, queue)} if found["saturated"] else found


def _quarters(queue: Floats) -> list[float]:
    return [float(quarter.mean()) for quarter in np.array_split(queue, 4) if len(quarter)]


def _never_shrank(queue: Floats, least: float) -> bool:
    """Is it at least *least* at last, longer than in the first half, and no quarter's mean below the one before?"""
    grew = queue[-1] >= least and queue[-1] > _GROWTH * queue[: (len(queue) + 1) // 2].max()
    return bool(grew) and all(later >= earlier for earlier, later in pairwise(_quarters(queue)))


def _drifted(queue: Floats) -> bool:
    """Is it further than a queue wanders by chance?"""
    *before, last = _quarters(queue)
    long = queue[-1] >= max(_SHORTEST, _DRIFT * np.sqrt(len(queue)))
    return bool(long) and last > _RISE * max(before, default=0.0)


def sustained(history: History, queue: Series) -> dict[str, float | None]:
    """The rate of completions while requests waited, None where these are too few.

    Counted from when the queue last was empty before the last arrival, and one mean time in service later, so that
    all seats have been taken and given up again, until it is empty.  The interval is Student's, of the counts in ten
    parts of that time.
    """
    requests, arrivals = history.requests, history.requests.arrival
    empty = queue.times[queue.values <= 0]
    begin = max(empty[empty < arrivals[-1]], default=float(arrivals[0]))
    end = min(empty[empty >= arrivals[-1]], default=history.duration)
    inside = requests.completed & (requests.admitted >= begin) & (requests.admitted <= end)
    begin += float((requests.finished - requests.admitted)[inside].mean()) if inside.any() else 0.0
    ends = requests.finished[requests.completed]
    counts, _ = np.histogram(ends[(ends >= begin) & (ends <= end)], _PARTS, (begin, max(begin, end)))
    if counts.sum() < _FEWEST or end <= begin:
        return dict.fromkeys(_RATES)
    rates = counts * _PARTS / (end - begin)
    middle, reach = float(rates.mean()), _STUDENT * float(rates.std(ddof=1)) / _PARTS**0.5
    return dict(zip(_RATES, (middle, max(0.0, middle - reach), middle + reach), strict=True))
