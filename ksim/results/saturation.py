"""Did the queue grow without end?  If so, latencies tell how long the run was, not how good the system is."""

from itertools import pairwise
from typing import Any

import numpy as np

from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.series import waiting

#: A shorter queue at the last arrival is no sign of anything.
_SHORTEST = 8
#: How much longer than ever in the first half of the arrivals the queue must be at the last one.
_GROWTH = 1.5


def saturation(history: History) -> dict[str, Any]:
    """How many requests wait when the last one arrives, and whether that is a queue that kept growing.

    Requests that all arrive at once wait by design, so a queue needs arrivals
    over a tenth of the run to count as growing.
    """
    arrivals = history.requests.arrival
    if not len(arrivals):
        return {"waiting_at_last_arrival": 0, "saturated": False}
    queue = waiting(history).at(arrivals)
    last = int(queue[-1])
    spread_out = arrivals[-1] - arrivals[0] > 0.1 * history.duration
    grew = last > _GROWTH * queue[: (len(queue) + 1) // 2].max() and _rises(queue)
    return {"waiting_at_last_arrival": last, "saturated": bool(spread_out and last >= _SHORTEST and grew)}


def _rises(queue: Floats) -> bool:
    """Is no quarter's mean below the one before?"""
    quarters = [quarter.mean() for quarter in np.array_split(queue, 4) if len(quarter)]
    return all(later >= earlier for earlier, later in pairwise(quarters))
