"""Tracks of each engine beside its steps: what the host does, and counters of queue, batch, cache and power."""

from collections.abc import Iterator

import numpy as np

from ksim.report.perfetto.steps import engine_process, name_of
from ksim.report.perfetto.text import lines, microseconds, thousandths, whole
from ksim.results.arrays import Floats, Ints
from ksim.results.history import History
from ksim.results.series import engine_power

#: Threads of each engine: making batches and taking in tokens overlap where several workers prepare the inputs.
MAKES, TAKES = 50, 51
_NAMES = {MAKES: "host: schedule and prepare", TAKES: "host: take in tokens"}
#: Slices, or changes of a counter, that are written at once.
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
            yield from counter(label, process, times[order][::stride], values[order][::stride])
        if not np.isnan(steps.stage_steps.scaling.clock).any() and len(times):
            clocks = np.rint(1e-6 * _of_steps(history, rows)).astype(np.int64)
            yield from counter("SM MHz", process, steps.start[rows][::stride], clocks[::stride])
        power = engine_power(history, place)
        yield from counter("watts", process, power.times[::stride], np.rint(power.values[::stride]).astype(np.int64))


def _of_steps(history: History, rows: slice) -> Floats:
    """The SM clock of each step's first stage, in Hz."""
    steps = history.steps
    first = np.searchsorted(steps.stage_step_rows, np.arange(rows.start, rows.stop))
    clocks: Floats = steps.stage_steps.scaling.clock[first]
    return clocks


def counter(name: str, process: int, times: Floats, values: Ints) -> Iterator[memoryview]:
    """A track of whole numbers over time, told where they change."""
    changed = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(values)])
    for begin in range(0, len(changed), _BLOCK):
        rows = changed[begin: begin + _BLOCK]
        yield lines(f',\n{{"name":"{name}","ph":"C","pid":{process},"tid":0,"ts":', microseconds(times[rows]),
                    ',"args":{"value":', whole(values[rows]), "}}")
