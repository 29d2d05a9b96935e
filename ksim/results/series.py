"""Quantities over time: waiting and running requests, cache usage, power, and the use of a fleet's links.

`saturation` says whether the queue kept growing.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen

from ksim.results.history import History, unused_gpus
from ksim.results.numbers import Summary
from ksim.results.steps import Floats


@frozen(eq=False)
class Series:
    """A quantity that is `values[i]` from `times[i]` until the next time; zero before the first."""

    times: Floats
    values: Floats

    @classmethod
    def of_changes(cls, times: Floats, changes: Floats) -> "Series":
        """Add up *changes* in order of *times*.  Changes at the same time are one change; nan times are left out."""
        there = ~np.isnan(times)
        moments, which = np.unique(times[there], return_inverse=True)
        return cls(moments, np.cumsum(np.bincount(which, weights=changes[there], minlength=len(moments))))

    @classmethod
    def total(cls, parts: "Sequence[Series]") -> "Series":
        """The sum of *parts*."""
        return cls.of_changes(np.concatenate([part.times for part in parts] or [np.zeros(0)]),
                              np.concatenate([np.diff(part.values, prepend=0.0) for part in parts] or [np.zeros(0)]))

    def integral(self, until: Floats) -> Floats:
        """The area under the series from its start up to each of these times."""
        if not len(self.times):
            return np.zeros(len(until))
        area = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.times))])
        index = np.searchsorted(self.times, until, side="right") - 1
        inside = np.maximum(index, 0)
        return np.where(index < 0, 0.0, area[inside] + self.values[inside] * (until - self.times[inside]))

    def means(self, edges: Floats) -> Floats:
        """The mean between each of these times and the next."""
        return np.diff(self.integral(edges)) / np.diff(edges)

    def at(self, times: Floats) -> Floats:
        """The value at each of these times."""
        if not len(self.times):
            return np.zeros(len(times))
        index = np.searchsorted(self.times, times, side="right") - 1
        return np.where(index < 0, 0.0, self.values[np.maximum(index, 0)])

    @property
    def peak(self) -> float:
        return float(self.values.max(initial=0.0))


def _ups_and_downs(ups: list[Floats], downs: list[Floats]) -> Series:
    times, falls = np.concatenate(ups + downs), sum(map(len, downs))
    return Series.of_changes(times, np.concatenate([np.ones(len(times) - falls), -np.ones(falls)]))


def concurrency(history: History) -> Series:
    """Completed requests in flight: from their arrival up to, but not at, their last token."""
    requests = history.requests
    return _ups_and_downs([requests.arrival[requests.completed]], [requests.last_token[requests.completed]])


def waiting(history: History, amounts: Floats | None = None) -> Series:
    """Requests that have arrived and do not run: before their first admission, preempted, or without room for their KV.

    With *amounts*, each request counts for its amount.
    """
    requests, each = history.requests, np.ones(len(history.requests)) if amounts is None else amounts
    splits = history.splits
    begin, end = splits.waiting_for_room
    ups = [requests.arrival, requests.preempted["time"], begin]
    downs = [np.fmin(np.fmin(requests.admitted, requests.rejected), requests.failed), requests.readmitted["time"],
             np.fmin(requests.finished, requests.failed)[requests.displaced], end]
    changes = [each, each[requests.rows(requests.preempted["request_id"])], each[splits.row],
               -each, -each[requests.rows(requests.readmitted["request_id"])], -each[requests.displaced],
               -each[splits.row]]
    return Series.of_changes(np.concatenate(ups + downs), np.concatenate(changes))


def running(history: History) -> Series:
    """Running requests."""
    requests, splits = history.requests, history.splits
    held = ~np.isnan(requests.admitted) & ~requests.displaced
    begin, end = splits.between
    held[splits.row[~np.isnan(begin) & np.isnan(end)]] = False
    ups = [requests.admitted, requests.readmitted["time"], end]
    ends = np.fmin(requests.finished, requests.failed)
    return _ups_and_downs(ups, [ends[held], requests.preempted["time"], begin])


def moving(history: History) -> Series:
    """Requests between their prefill and their decode engine that do not wait for room there."""
    splits = history.splits
    begin, end = splits.between
    waits, until = splits.waiting_for_room
    gone = np.fmin(end, history.requests.failed[splits.row])
    return _ups_and_downs([begin, until[~np.isnan(begin)]], [gone, waits[~np.isnan(begin)]])


def kv_usage(history: History, places: Iterable[int] | None = None) -> Series:
    """The share of the KV blocks of the engines at *places*, by default all, in use; an engine without work uses none.

    Those that a prefill engine holds until they are read are in use.
    """
    steps, engines = history.steps, range(len(history.engines)) if places is None else list(places)
    changes, times = [np.zeros(0)], [np.zeros(0)]
    for index in engines:
        rows, held = steps.rows(index), held_blocks(history, index)
        idle = _idle_moments(history, index, held)
        moments = np.concatenate([steps.scheduled[rows], idle])
        blocks = np.concatenate([steps.blocks[rows], held.at(idle)])
        order = np.argsort(moments, kind="stable")
        times.append(moments[order])
        changes.append(np.diff(blocks[order], prepend=0.0))
    total = max(sum(history.engines[index].kv_blocks for index in engines), 1)
    return Series.of_changes(np.concatenate(times), np.concatenate(changes) / total)


def _idle_moments(history: History, index: int, held: Series) -> Floats:
    """When the engine at *index* ran out of work, and when it *held* other blocks while it had none."""
    steps, rows = history.steps, history.steps.rows(index)
    emptied = history.idle_after[rows] > 0
    step = np.searchsorted(steps.scheduled[rows], held.times, side="right") - 1
    idle = (step >= 0) & np.append(emptied, False)[step] & (held.times > np.append(steps.end[rows], np.inf)[step])
    return np.append(steps.end[rows][emptied], held.times[idle])


def held_blocks(history: History, index: int) -> Series:
    """KV blocks that the engine at *index* holds for others to read, after it has computed them."""
    splits = history.splits
    own = splits.source == index
    blocks = splits.held_blocks[own].astype(np.float64)
    times = np.concatenate([splits.prefilled[own], splits.released[own]])
    return Series.of_changes(times, np.concatenate([blocks, -blocks]))


def engine_power(history: History, index: int) -> Series:
    """Watts of the GPUs of one engine: static power, less while they sleep, plus dynamic power of its steps."""
    steps, rows = history.steps, history.steps.rows(index)
    static, dynamic = static_power(history, index), steps.dynamic_watts[rows]
    times = np.concatenate([static.times, steps.start[rows], steps.end[rows]])
    return Series.of_changes(times, np.concatenate([np.diff(static.values, prepend=0.0), dynamic, -dynamic]))


def static_power(history: History, index: int) -> Series:
    """Static watts of the GPUs of one engine."""
    steps, built, rows = history.steps, history.engines[index], history.steps.rows(index)
    gpus = built.ranks * built.stages
    naps = np.append(history.naps[rows], history.last_naps[index])
    ends = np.append(steps.start[rows], history.duration)[naps > 0]
    saved = np.full(len(ends), (built.static_watts - built.sleep_watts) * gpus)
    there = np.array([state != "gone" for _, state in built.life] or [True])
    since = np.array([moment for moment, _ in built.life] or [0.0])
    times = np.concatenate([since, ends - naps[naps > 0], ends])
    changes = np.diff(there.astype(float), prepend=0.0) * built.static_watts * gpus
    return Series.of_changes(times, np.concatenate([changes, -saved, saved]))


def power(history: History, places: Iterable[int] | None = None) -> Series:
    """Watts of the GPUs of the engines at *places*, by default of all that are paid."""
    return _added(history, engine_power, places)


def all_static_power(history: History) -> Series:
    """Static watts of all GPUs."""
    return _added(history, static_power, None)


def _added(history: History, of_engine: Callable[[History, int], Series], places: Iterable[int] | None) -> Series:
    parts = [of_engine(history, index) for index in (range(len(history.engines)) if places is None else places)]
    for there, since, until, gpus in unused_gpus(history.engines, history.duration) if places is None else ():
        watts = gpus * history.engines[there[0]].static_watts
        parts.append(Series.of_changes(np.append(since, until), np.append(watts, -watts)))
    return Series.total(parts)


@frozen(eq=False)
class LinkUse:
    """A link by its `name`, the share of its capacity in use over time, and the mean of that over the run."""

    name: str
    kind: str
    capacity: float
    use: Series
    mean: float


def busiest(history: History, most: int) -> list[LinkUse]:
    """The links whose mean use is largest, at most so many of them; those that were never used are left out."""
    events, ends = history.link_use, np.array([history.duration])
    order = np.argsort(events["link"], kind="stable")
    numbers, first = np.unique(events["link"][order], return_index=True)
    groups = dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True)) if len(numbers) else {}
    found = []
    for link in history.links:
        if link.link in groups:
            use = _latest(events["time"][groups[link.link]], events["rate"][groups[link.link]] / link.capacity)
            mean = float(use.integral(ends)[0]) / (history.duration or 1.0)
            found.append(LinkUse(link.name, link.kind, link.capacity, use, mean))
    return sorted((link for link in found if link.mean > 0), key=lambda link: (-link.mean, link.name))[:most]


def _latest(times: Floats, values: Floats) -> Series:
    """The values from *times* on, which ascend; of those at one time the last one counts."""
    last = np.append(times[1:] > times[:-1], True)
    return Series(times[last], values[last])


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
#: runs of two loads, three shorter ones told 1.3 to 7.1 requests/s where long ones tell 3.3 to 9.7; four longer ones
#: had that in their intervals.
_LIVES = 1.0

_RATES = ("sustainable_request_rate", "sustainable_request_rate_low", "sustainable_request_rate_high")
SATURATION_KEYS = ("waiting_at_last_arrival", "waiting_tokens_at_last_arrival", "saturated", *_RATES)


def saturation(history: History, closed: bool = False) -> Summary:
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
