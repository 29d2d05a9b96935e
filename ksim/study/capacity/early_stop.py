"""Stop a run that is hopeless: as soon as it is sure that its backlog grows."""

from collections.abc import Iterable, Iterator

import numpy as np

from ksim.flow.events import Admitted, Arrived, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError
from ksim.results.arrays import Floats
from ksim.results.saturation import DRIFT, drifted

#: How often a run is looked at, as a share of its requests; the first time after two.
_EVERY = 1 / 16
#: How much longer than for a verdict at the end of a run a backlog has to be.  It is looked at many times, and may not
#: be called growing by chance in one of them.
SURE = 2 * DRIFT


class Hopeless(KsimError):
    """A run was stopped: requests kept coming faster than they were served."""


def watched(requests: Iterable[Request], log: Log, count: int) -> Iterator[Request]:
    """*requests*, about *count* of them, as a cluster pulls them while it writes *log*.

    Raises Hopeless instead of the next one as soon as the backlog is sure to grow, by the rule of growth of
    `ksim.results.saturation`.  It reads the log and changes nothing.
    """
    every = max(50, int(_EVERY * count))
    for number, request in enumerate(requests):
        if number >= 2 * every and number % every == 0 and grows(backlog(log), _burstiness(log)):
            raise Hopeless(f"the backlog kept growing over the first {number:,} requests")
        yield request


def grows(queue: Floats, burstiness: float = 1.0) -> bool:
    """Whether a *queue*, as it was at each arrival, surely grows; one of bursty arrivals has to be longer for that."""
    return len(queue) >= 50 and drifted(queue, SURE * max(1.0, burstiness))


def backlog(log: Log) -> Floats:
    """How many requests waited at each arrival, up to the latest admission that is in *log*.

    An engine may write down admissions some steps later than the cluster writes down arrivals.
    """
    arrived, admitted = log.columns(Arrived)["time"], log.columns(Admitted)
    left = np.sort(np.concatenate([admitted["time"][~admitted["again"]], log.columns(Rejected)["time"]]))
    known = arrived[arrived <= left[-1]] if len(left) else arrived[:0]
    return (np.arange(1, len(known) + 1) - np.searchsorted(left, known, side="right")).astype(np.float64)


def _burstiness(log: Log) -> float:
    """The standard deviation of the gaps between arrivals over their mean: 1 for Poisson."""
    gaps = np.diff(log.columns(Arrived)["time"])
    return float(gaps.std() / gaps.mean()) if gaps.sum() > 0 else 1.0
