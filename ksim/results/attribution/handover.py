"""The phases of a split request between its two engines."""

from itertools import accumulate

import numpy as np

from ksim.results.arrays import Bools, Floats, Ints
from ksim.results.splits import Splits

UPDATE, DELIVERY = "update", "delivery"
HOP, ROOM, TRANSFER, CONTENTION, NEXT_STEP = "hop", "room", "transfer", "contention", "next_step"
#: The phases that only split requests have, and the group in which each is shown.
HANDOVER = {HOP: "hop", ROOM: "wait for room", TRANSFER: "KV transfer", CONTENTION: "KV contention",
            NEXT_STEP: "next step"}
#: What follows the last prompt token: the prefill engine's host takes in and delivers its answer, and then those.
PHASES = (UPDATE, DELIVERY, *HANDOVER)


def moments(splits: Splits) -> tuple[Ints, Floats]:
    """The rows of completed requests that two engines ran, and when each of `PHASES` began and the last one ended.

    A phase begins when the one before it ends.  Where a connector moves KV behind the prefill, much of the hand-over is
    over by then: a phase that ended before the one ahead of it takes no time.  The decode engine's first admission is
    the end of all.
    """
    requests = splits.requests
    which = requests.completed[splits.row] & ~np.isnan(splits.admitted)
    taken = np.append(requests.steps.taken, np.nan)[splits.last_prefill]
    begin = np.where(splits.handed, requests.first_token[splits.row], splits.prefilled)
    begin = np.where(np.isnan(begin), splits.queued, begin)
    taken, answered = (np.where(splits.awaited, times, np.nan) for times in (taken, splits.answered))
    ends = [begin, taken, answered, splits.queued, np.where(np.isnan(splits.loaded), splits.admitted, splits.allocated)]
    reached = np.stack([np.minimum(end, splits.admitted) for end in accumulate(ends, np.fmax)], axis=1)[which]
    return splits.row[which], np.concatenate([reached, _transfers(splits, reached[:, -1:], which)], axis=1)


def _transfers(splits: Splits, begin: Floats, which: Bools) -> Floats:
    """When what is left of each transfer from *begin* on could have ended, did end, and the decode engine went on."""
    began, loaded, alone, admitted = (column[which, None] for column in (
        splits.began, splits.loaded, splits.alone, splits.admitted))
    end = np.fmax(begin, np.fmin(loaded, admitted))
    return np.concatenate([np.fmin(np.fmax(begin, began) + alone, end), end, admitted], axis=1)
