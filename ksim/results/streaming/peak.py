"""How many requests were in flight at once, and in the fullest second how many tokens came, as a run goes on."""

import numpy as np
from attrs import define, field

from ksim.results.arrays import Bools, Floats, Ints, sums
from ksim.results.requests import Requests
from ksim.results.series import Series


@define(eq=False)
class Concurrency:
    """The most completed requests in flight at once; what is not yet sure to be complete is kept."""

    peak: int = 0
    _level: float = 0.0
    _times: Floats = field(factory=lambda: np.zeros(0))
    _changes: Floats = field(factory=lambda: np.zeros(0))

    def add(self, requests: Requests, done: Bools, until: float) -> None:
        """Take in the completed requests *done*; no other will be that arrived before *until*."""
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
    """Output tokens of completed requests in each second from the first arrival on that has any."""

    begin: float | None = None
    _first: float = np.inf
    _seconds: Ints = field(factory=lambda: np.zeros(0, np.int64))
    _counts: Ints = field(factory=lambda: np.zeros(0, np.int64))

    def add(self, requests: Requests, done: Bools) -> None:
        """Take in the completed requests *done*."""
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
        """Tokens in the fullest second; None where the seconds did not begin with the first request that completed."""
        if not len(self._counts):
            return 0.0
        return float(self._counts.max()) if self._first == self.begin else None
