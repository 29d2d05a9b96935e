"""Quantities over time: waiting and running requests, cache usage, power, and the use of a fleet's links."""

from collections.abc import Callable, Iterable

import numpy as np
from attrs import frozen

from ksim.results.history import History
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

    def integral(self, until: Floats) -> Floats:
        """The area under the series from its start up to each of these times."""
        if not len(self.times):
            return np.zeros(len(until))
        area = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.times))])
        place = np.searchsorted(self.times, until, side="right") - 1
        inside = np.maximum(place, 0)
        return np.where(place < 0, 0.0, area[inside] + self.values[inside] * (until - self.times[inside]))

    def means(self, edges: Floats) -> Floats:
        """The mean between each of these times and the next."""
        return np.diff(self.integral(edges)) / np.diff(edges)

    def at(self, times: Floats) -> Floats:
        """The value at each of these times."""
        if not len(self.times):
            return np.zeros(len(times))
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place < 0, 0.0, self.values[np.maximum(place, 0)])

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
    for place in engines:
        rows, held = steps.rows(place), held_blocks(history, place)
        idle = _idle_moments(history, place, held)
        moments = np.concatenate([steps.scheduled[rows], idle])
        blocks = np.concatenate([steps.blocks[rows], held.at(idle)])
        order = np.argsort(moments, kind="stable")
        times.append(moments[order])
        changes.append(np.diff(blocks[order], prepend=0.0))
    total = max(sum(history.engines[place].kv_blocks for place in engines), 1)
    return Series.of_changes(np.concatenate(times), np.concatenate(changes) / total)


def _idle_moments(history: History, place: int, held: Series) -> Floats:
    """When the engine at *place* ran out of work, and when it *held* other blocks while it had none."""
    steps, rows = history.steps, history.steps.rows(place)
    emptied = history.idle_after[rows] > 0
    step = np.searchsorted(steps.scheduled[rows], held.times, side="right") - 1
    idle = (step >= 0) & np.append(emptied, False)[step] & (held.times > np.append(steps.end[rows], np.inf)[step])
    return np.append(steps.end[rows][emptied], held.times[idle])


def held_blocks(history: History, place: int) -> Series:
    """KV blocks that the engine at *place* holds for others to read, after it has computed them."""
    splits = history.splits
    own = splits.source == place
    blocks = splits.held_blocks[own].astype(np.float64)
    times = np.concatenate([splits.prefilled[own], splits.released[own]])
    return Series.of_changes(times, np.concatenate([blocks, -blocks]))


def engine_power(history: History, place: int) -> Series:
    """Watts of the GPUs of one engine: static power, less while they sleep, plus dynamic power of its steps."""
    steps, rows = history.steps, history.steps.rows(place)
    static, dynamic = static_power(history, place), steps.dynamic_watts[rows]
    times = np.concatenate([static.times, steps.start[rows], steps.end[rows]])
    return Series.of_changes(times, np.concatenate([np.diff(static.values, prepend=0.0), dynamic, -dynamic]))


def static_power(history: History, place: int) -> Series:
    """Static watts of the GPUs of one engine."""
    steps, built, rows = history.steps, history.engines[place], history.steps.rows(place)
    gpus = built.ranks * built.stages
    naps = np.append(history.naps[rows], history.last_naps[place])
    ends = np.append(steps.start[rows], history.duration)[naps > 0]
    saved = np.full(len(ends), (built.static_watts - built.sleep_watts) * gpus)
    times = np.concatenate([[0.0], ends - naps[naps > 0], ends])
    return Series.of_changes(times, np.concatenate([[built.static_watts * gpus], -saved, saved]))


def power(history: History, places: Iterable[int] | None = None) -> Series:
    """Watts of the GPUs of the engines at *places*, by default all."""
    return _added(history, engine_power, places)


def all_static_power(history: History) -> Series:
    """Static watts of all GPUs."""
    return _added(history, static_power, None)


def _added(history: History, of_engine: Callable[[History, int], Series], places: Iterable[int] | None) -> Series:
    engines = [of_engine(history, place) for place in (range(len(history.engines)) if places is None else places)]
    times = np.concatenate([series.times for series in engines] or [np.zeros(0)])
    changes = np.concatenate([np.diff(series.values, prepend=0.0) for series in engines] or [np.zeros(0)])
    return Series.of_changes(times, changes)


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
