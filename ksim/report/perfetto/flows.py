"""Arrows from each request to the steps that matter to it: after every admission, of its first token, of its last.

Perfetto draws arrows between slices of threads only, so a request's begins at a short slice of its own, on a track of
arrivals.
"""

from collections.abc import Iterator

import numpy as np

from ksim.flow.events import Admitted
from ksim.report.perfetto.lanes import Lanes
from ksim.report.perfetto.slices import REQUESTS_PROCESS, engine_process, name_of
from ksim.report.perfetto.text import lines, picked, thousandths, whole
from ksim.results.arrays import Ints

#: The thread of arrivals, and how long, in ns, a slice there lasts at least and at most.
ARRIVALS, _SHORTEST, _LONGEST = 1, 100, 1_000_000
_BLOCK = 1 << 12


def flows(lanes: Lanes, stride: int) -> Iterator[bytes | memoryview]:
    """Every *stride*-th request's slice of arrival, and its arrows to those of every *stride*-th step."""
    requests = lanes.history.requests
    rows = np.flatnonzero(np.arange(len(requests)) % stride == 0)
    yield (",\n" + name_of("thread", REQUESTS_PROCESS, ARRIVALS, "arrivals")).encode()
    begin, lasts = _arrivals(np.rint(1e9 * requests.arrival[rows]).astype(np.int64))
    for first in range(0, len(rows), _BLOCK):
        part = slice(first, first + _BLOCK)
        yield lines(',\n{"name":"request ', whole(requests.ids[rows[part]]),
                    f'","ph":"X","pid":{REQUESTS_PROCESS},"tid":{ARRIVALS},"ts":', thousandths(begin[part]),
                    ',"dur":', thousandths(lasts[part]), ',"args":{"prompt":', whole(requests.prompt[rows[part]]),
                    ',"output":', whole(requests.output[rows[part]]), "}}")
    sources = np.zeros(len(requests), np.int64)
    sources[rows] = begin + _SHORTEST // 2  # inside the slice, and before any step that the request can be in
    yield from _arrows(lanes, sources, stride)


def _arrivals(times: Ints) -> tuple[Ints, Ints]:
    """When the slice of each of these arrivals begins and how long it lasts, one after another, in nanoseconds:
    requests that arrive at once are a tenth of a microsecond apart."""
    room = np.diff(times, append=times[-1:] + _LONGEST)
    lasts = np.clip(room, _SHORTEST, _LONGEST)
    earlier = np.cumsum(lasts) - lasts
    return np.maximum.accumulate(times - earlier) + earlier, lasts


def _arrows(lanes: Lanes, sources: Ints, stride: int) -> Iterator[memoryview]:
    """One for each request that came to a shown step, from *sources* in nanoseconds."""
    row, lane = _visited(lanes, stride)
    if not len(row):
        return
    last = np.append(row[1:] != row[:-1], True)
    of, requests, steps = np.unique(row), lanes.history.requests, lanes.history.steps
    process = engine_process(0) + steps.engine[steps.lane_step[lane]]
    middle = lanes.begin[lane] + (lanes.end - lanes.begin)[lane] // 2
    columns = (np.concatenate([of, row]), np.concatenate([np.zeros(len(of), np.int64), 1 + last]),
               np.concatenate([np.full(len(of), REQUESTS_PROCESS), process]),
               np.concatenate([np.full(len(of), ARRIVALS), 1 + lanes.stage[lane]]),
               np.concatenate([sources[of], middle]))
    for first in range(0, len(columns[0]), _BLOCK):
        whose, kind, pid, tid, time = (column[first: first + _BLOCK] for column in columns)
        yield lines(',\n{"name":"request","cat":"request","ph":"', picked(("s", "t", 'f","bp":"e'), kind),
                    '","id":', whole(requests.ids[whose]), ',"pid":', whole(pid), ',"tid":', whole(tid),
                    ',"ts":', thousandths(time), "}")


def _visited(lanes: Lanes, stride: int) -> tuple[Ints, Ints]:
    """Which request goes to which lane, request by request in the order of time, each lane once: the first stage of the
    steps after its admissions, and of those of its first and last token."""
    history, steps = lanes.history, lanes.history.steps
    requests, admitted = history.requests, history.events[Admitted]
    some = np.flatnonzero(requests.output > 0)
    first, last = (requests.token_steps[places] for places in (requests.first[some], requests.first[some + 1] - 1))
    row = np.concatenate([requests.rows(admitted["request_id"]), some, some])
    step = np.concatenate([_next_steps(lanes, admitted["engine"], admitted["time"]), first, last])
    shown = (step >= 0) & (row % stride == 0) & (step % stride == 0)
    pairs = np.unique(np.stack([row[shown], step[shown]], axis=1).astype(np.int64), axis=0)
    of_step = np.searchsorted(steps.lane_step, pairs[:, 1])
    order = np.lexsort((lanes.begin[of_step], pairs[:, 0]))
    return pairs[order, 0], of_step[order]


def _next_steps(lanes: Lanes, engines: Ints, times: Ints) -> Ints:
    """The row of the first step that each of these *engines* scheduled at these *times* or later; -1 for none."""
    steps, places = lanes.history.steps, lanes.history.steps.places(engines)
    found = np.full(len(times), -1)
    for place in range(len(lanes.history.engines)):
        rows, mine = steps.rows(place), places == place
        ahead = np.searchsorted(steps.scheduled[rows], times[mine])
        found[mine] = np.where(ahead < rows.stop - rows.start, rows.start + ahead, -1)
    return found
