"""How much there is of what: queue, batch, cache and power as counter tracks of each engine."""

from collections.abc import Iterator

import numpy as np

from ksim.report.perfetto.slices import engine_process
from ksim.report.perfetto.text import lines, microseconds, whole
from ksim.results.arrays import Floats, Ints
from ksim.results.history import History
from ksim.results.series import engine_power

#: Changes that are written at once.
_BLOCK = 1 << 13


def counters(history: History, stride: int) -> Iterator[memoryview]:
    """The counters of each engine, each at the steps it changes in; of those, every *stride*-th."""
    steps = history.steps
    for place in range(len(history.engines)):
        process, rows = engine_process(place), steps.rows(place)
        idle = history.idle_after[rows] > 0
        times = np.concatenate([steps.scheduled[rows], steps.end[rows][idle]])
        order = np.argsort(times, kind="stable")
        for name in ("waiting", "running", "blocks"):
            values = np.concatenate([getattr(steps, name)[rows], np.zeros(int(idle.sum()), np.int64)])
            label = "KV blocks" if name == "blocks" else name
            yield from _track(label, process, times[order][::stride], values[order][::stride])
        if not np.isnan(steps.lanes.scaling.clock).any() and len(times):
            clocks = np.rint(1e-6 * _of_steps(history, rows)).astype(np.int64)
            yield from _track("SM MHz", process, steps.start[rows][::stride], clocks[::stride])
        power = engine_power(history, place)
        yield from _track("watts", process, power.times[::stride], np.rint(power.values[::stride]).astype(np.int64))


def _of_steps(history: History, rows: slice) -> Floats:
    """The SM clock of each step's first stage, in Hz."""
    steps = history.steps
    first = np.searchsorted(steps.lane_step, np.arange(rows.start, rows.stop))
    clocks: Floats = steps.lanes.scaling.clock[first]
    return clocks


def _track(name: str, process: int, times: Floats, values: Ints) -> Iterator[memoryview]:
    changed = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(values)])
    for begin in range(0, len(changed), _BLOCK):
        rows = changed[begin: begin + _BLOCK]
        yield lines(f',\n{{"name":"{name}","ph":"C","pid":{process},"tid":0,"ts":', microseconds(times[rows]),
                    ',"args":{"value":', whole(values[rows]), "}}")
