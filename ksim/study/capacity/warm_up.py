"""Where a run is in its steady state: without its beginning, when queues fill, and its end, when they drain."""

import numpy as np

from ksim.results.arrays import Floats

#: Observations of a batch, and the share of a series that may be cut off at most.
_BATCH, _MOST = 5, 0.5


def mser(series: Floats, batch: int = _BATCH) -> int:
    """How many observations at the beginning of *series* to leave out.

    MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997):
    of the means of batches of five, those are kept whose mean has the least standard error.  A minimum in the second
    half says that the series is too short; no more than half is cut off.
    """
    count = len(series) // batch
    if count < 2:
        return 0
    means = series[:count * batch].reshape(count, batch).mean(axis=1)
    left = np.arange(count, 0, -1)
    # Sums over all batches from each one to the last.
    total, squares = (np.cumsum(column[::-1])[::-1] for column in (means, means * means))
    errors = np.maximum(squares - total * total / left, 0.0) / left**2
    return int(np.argmin(errors[:max(1, int(_MOST * count))])) * batch


def before_drain(arrival: Floats, known: Floats) -> int:
    """How many of the requests that arrived then come early enough: those after them see load fall, as none follows.

    What counts of a request is *known* some time after its arrival.  Requests that arrive within the median of that
    time before the last one are cut off, but no more than half of all; long ones and short ones alike, so that neither
    is preferred.
    """
    if not len(arrival):
        return 0
    took = known - arrival
    took = took[np.isfinite(took)]
    end = arrival[-1] - (float(np.median(took)) if len(took) else 0.0)
    return max(int(np.searchsorted(arrival, end, side="right")), len(arrival) - int(_MOST * len(arrival)))
