"""Intervals of a run's latencies, from the intervals of its kernels."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ksim.results.arrays import Bools, Floats, Ints
from ksim.results.history import History

#: The statistics of latencies that have an interval.
_JUDGED: dict[str, Callable[[Floats], Any]] = {"median": np.median, "p99": lambda values: np.percentile(values, 99)}

KEYS = tuple(f"{statistic}_{name}_{side}_ms" for side in ("low", "high") for name in ("ttft", "tpot")
             for statistic in _JUDGED)


def uncertainty(history: History) -> dict[str, Any]:
    """90 % intervals of TTFT and TPOT, in milliseconds.

    A request's latency is off by as much as the steps in it are.  Kernels of a family err alike in all steps, so the
    steps' intervals add up.  Effects of a slower or faster engine on batches and queues are not included.  None if
    the oracle gives no intervals.
    """
    requests, done = history.requests, history.requests.completed
    several = done & (requests.output > 1)
    judged: dict[str, Any] = {}
    for side, sign in (("low", -1.0), ("high", 1.0)):
        off = _accumulated(history, side)
        ttft = requests.ttft + sign * (off(requests.first_token) - off(requests.arrival) + _of_prefill(history, side))
        decode = requests.last_token - requests.first_token
        decode = decode + sign * (off(requests.last_token) - off(requests.first_token))
        judged |= _statistics("ttft", side, ttft[done])
        judged |= _statistics("tpot", side, decode[several] / (requests.output[several] - 1))
    return judged


def _statistics(name: str, side: str, seconds: Floats) -> dict[str, Any]:
    known = len(seconds) > 0 and bool(np.isfinite(seconds).all())
    return {f"{statistic}_{name}_{side}_ms": float(1e3 * judge(seconds)) if known else None
            for statistic, judge in _JUDGED.items()}


def _of_prefill(history: History, side: str) -> Floats:
    """What the error up to the first token changes by where another engine prefills.

    Until it has the prompt's KV, a split request's error is that of its prefill engine.
    """
    splits, extra = history.splits, np.zeros(len(history.requests))
    if not len(splits):
        return extra
    arrival = history.requests.arrival[splits.row]
    until = np.fmax(np.fmin(splits.prefilled, history.requests.first_token[splits.row]), arrival)
    ahead, behind = (_accumulated(history, side, engine) for engine in (splits.source, splits.target))
    extra[splits.row] = ahead(until) - ahead(arrival) - (behind(until) - behind(arrival))
    return extra


def _accumulated(history: History, side: str, engine: Ints | None = None) -> Callable[[Floats], Floats]:
    """Cumulative errors, in seconds, of the steps of *engine*, by default each request's own, up to each moment."""
    steps, own = history.steps, history.requests.engine if engine is None else engine
    costs = steps.stage_steps.costs
    off = steps.added(abs(getattr(costs, side) - costs.seconds))
    curves = [_curve(history, off, place) for place in range(len(history.engines))]

    def by(times: Floats) -> Floats:
        total = np.zeros(len(times))
        for place, (knots, heights) in enumerate(curves):
            of: Bools = own == place
            total[of] = np.interp(times[of], knots, heights)
        return total

    return by


def _curve(history: History, off: Floats, place: int) -> tuple[Floats, Floats]:
    """Times, and the cumulative error at each: each step adds its error evenly from start to end."""
    rows = history.steps.rows(place)
    start, end = history.steps.start[rows], history.steps.end[rows]
    after = np.cumsum(off[rows])
    before = after - off[rows]
    knots = np.maximum.accumulate(np.stack([start, end], axis=1).ravel())
    heights = np.stack([before, after], axis=1).ravel()
    return (knots, heights) if len(knots) else (np.zeros(1), np.zeros(1))
