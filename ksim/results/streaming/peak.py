"""Peaks during a run: the most requests in flight, and the most tokens in a second."""

import numpy as np
from attrs import define, field

from ksim.results.arrays import Bools, Floats, Ints, sums
from ksim.results.requests import Requests
from ksim.results.series import Series


@define(eq=False)
class Concurrency:
    """The most completed requests in flight at once.  It keeps requests that others may still overlap."""

    peak: int = 0
    _level: float = 0.0
    _times: Floats = field(factory=lambda: np.zeros(0))
    _changes: Floats = field(factory=lambda: np.zeros(0))

    def add(self, requests: Requests, done: Bools, until: float) -> None:
        """Add the completed requests *done*; no later one will have arrived before *until*."""
        count = int(done.sum())
        times = np.concatenate([self._times, requests.arrival[done], requests.last_token[done]])
        changes = np.concatenate([self._changes, np.ones(count), -np.ones(count)])
        sure = times < until
        series = Series.of_changes(times[sure], changes[sure])
        self.peak = max(self.peak, round(self._level + series.peak))
        self._level += float(changes[sure].sum())
        self._times, self._changes = times[~sure], changes[~sure]


@define(eq=False)
class Seconds:
    """Output tokens of completed requests in each second that has any, counted from the first arrival."""

    begin: float | None = None
    _first: float = np.inf
    _seconds: Ints = field(factory=lambda: np.zeros(0, np.int64))
    _counts: Ints = field(factory=lambda: np.zeros(0, np.int64))

    def add(self, requests: Requests, done: Bools) -> None:
        """Add the completed requests *done*."""
        accepted = requests.arrival[np.isnan(requests.rejected)]
        if self.begin is None and len(accepted):
            self.begin = float(accepted[0])
        if not done.any() or self.begin is None:
            return
        self._first = min(self._first, float(requests.arrival[done].min()))
        seconds, counts = requests.per_second(done, self.begin)
        self._seconds, which = np.unique(np.concatenate([self._seconds, seconds]), return_inverse=True)
        self._counts = sums(which, np.concatenate([self._counts, counts]), len(self._seconds)).astype(np.int64)

    @property
    def most(self) -> float | None:
        """Tokens in the fullest second; None if the first request did not complete."""
        if not len(self._counts):
            return 0.0
        return float(self._counts.max()) if self._first == self.begin else None
