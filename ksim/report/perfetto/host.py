"""What the host does: a slice for every batch that it makes, and for every batch whose tokens it takes in."""

from collections.abc import Iterator

import numpy as np

from ksim.report.perfetto.slices import engine_process, name_of
from ksim.report.perfetto.text import lines, thousandths, whole
from ksim.results.arrays import Floats, Ints
from ksim.results.history import History

#: Threads of each engine: making batches and taking in tokens overlap where several workers prepare the inputs.
MAKES, TAKES = 50, 51
_NAMES = {MAKES: "host: schedule and prepare", TAKES: "host: take in tokens"}
_BLOCK = 1 << 12


def host_slices(history: History, stride: int) -> Iterator[bytes | memoryview]:
    """Both tracks of each engine, of every *stride*-th step."""
    steps = history.steps
    for place in range(len(history.engines)):
        rows, process = steps.rows(place), engine_process(place)
        for thread, name, begin, end in ((MAKES, "schedule", steps.scheduled[rows], steps.prepared[rows]),
                                         (TAKES, "take in", steps.end[rows], steps.taken[rows])):
            yield (",\n" + name_of("thread", process, thread, _NAMES[thread])).encode()
            since, until = _in_turn(begin, end)
            shown = np.flatnonzero((np.arange(rows.start, rows.stop) % stride == 0) & (until > since))
            for first in range(0, len(shown), _BLOCK):
                some = shown[first: first + _BLOCK]
                yield lines(f',\n{{"name":"{name}","ph":"X","pid":{process},"tid":{thread},"ts":',
                            thousandths(since[some]), ',"dur":', thousandths((until - since)[some]),
                            ',"args":{"step":', whole(steps.index[rows][some]), "}}")


def _in_turn(begin: Floats, end: Floats) -> tuple[Ints, Ints]:
    """In nanoseconds; a host does one after another, so that each begins no earlier than the one ahead of it ends."""
    until = np.maximum.accumulate(np.rint(1e9 * end).astype(np.int64))
    since = np.rint(1e9 * begin).astype(np.int64)
    since[1:] = np.maximum(since[1:], until[:-1])
    return np.minimum(since, until), until
