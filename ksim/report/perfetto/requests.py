"""What each request lives through: queued, prefill, decode, preempted, as spans nested in its own."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from attrs import frozen

from ksim.flow.events import Admitted
from ksim.report.perfetto.slices import REQUESTS_PROCESS
from ksim.report.perfetto.text import joined, lines, microseconds, picked, taken, whole
from ksim.results import arrow
from ksim.results.arrays import Bools, Floats, Ints
from ksim.results.history import History
from ksim.results.requests import Requests

#: About how many events one request takes.
REQUEST_EVENTS = 12
#: Edges of spans that are written at once.
_BLOCK = 1 << 12

QUEUED, PREFILL, DECODE, PREEMPTED, _REQUEST = range(5)
_NAMES = ("queued", "prefill", "decode", "preempted", "request")


@frozen(eq=False)
class Phases:
    """What requests live through, one after another for each: columns of (phases,)."""

    row: Ints
    name: Ints
    begin: Floats
    end: Floats


def request_spans(history: History, stride: int) -> Iterator[memoryview]:
    """Every *stride*-th request with its phases."""
    requests = history.requests
    ends = np.where(requests.completed, requests.last_token, requests.rejected)
    ends = np.where(np.isnan(ends), history.duration, ends)
    found = phases(requests.arrival, _moves(history), requests.came, requests.first, ends)
    arguments = _arguments(requests)
    row, name, edge, time, argument = _edges(found, requests.arrival, ends, stride)
    for begin in range(0, len(row), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield lines(
            ',\n{"name":"', picked(_NAMES, name[part]), '","cat":"request","ph":"', picked(("b", "e"), edge[part]),
            '","id":', whole(requests.ids[row[part]]), f',"pid":{REQUESTS_PROCESS},"tid":0,"ts":',
            microseconds(time[part]), [taken(arguments, argument[part])], "}")


def _arguments(requests: Requests) -> pa.Array:
    """What the span of each request says of it; at the end, nothing."""
    status = np.where(requests.completed, 0, np.where(np.isnan(requests.rejected), 1, 2))
    (texts,) = joined(
        ',"args":{"request":', whole(requests.ids), ',"prompt":', whole(requests.prompt), ',"output":',
        whole(requests.output), ',"status":"', picked(("completed", "unfinished", "rejected"), status), '"}')
    return pa.concat_arrays([texts, arrow.texts([""])])


def _edges(found: Phases, arrival: Floats, ends: Floats, stride: int) -> tuple[Ints, Ints, Ints, Floats, Ints]:
    """The begins and ends of spans, request by request, each within that of the request: whose, its name, whether it
    ends (1), when, and what is said of it."""
    count, several = len(arrival), len(found.row)
    every, nothing = np.arange(count), np.full(2 * several + count, count)
    row = np.concatenate([every, np.repeat(found.row, 2), every])
    name = np.concatenate([np.full(count, _REQUEST), np.repeat(found.name, 2), np.full(count, _REQUEST)])
    edge = np.concatenate([np.zeros(count, np.int64), np.tile([0, 1], several), np.ones(count, np.int64)])
    time = np.concatenate([arrival, np.stack([found.begin, found.end], axis=1).ravel(), ends])
    order = np.argsort(row, kind="stable")
    order = order[row[order] % stride == 0]
    return row[order], name[order], edge[order], time[order], np.concatenate([every, nothing])[order]


def phases(arrival: Floats, moves: tuple[Ints, Floats, Bools], came: Callable[[Ints], Floats], first: Ints,
           ends: Floats) -> Phases:
    """What requests live through from their *arrival* to their *ends*.

    *moves* say which was admitted (True) or preempted (False) when; *came* tells when the tokens at some places came,
    of which those of row r begin at ``first[r]``.  While a request runs, all is prefill, or recomputation, up to its
    next token.
    """
    whose, when, admitted = moves
    row, begin = np.concatenate([np.arange(len(arrival)), whose]), np.concatenate([arrival, when])
    name = np.concatenate([np.full(len(arrival), QUEUED), np.where(admitted, PREFILL, PREEMPTED)])
    order = np.lexsort(((name == PREFILL) * 2 + (name == PREEMPTED), begin, row))
    row, begin, name = row[order], begin[order], name[order]
    until, followed = ends[row], np.flatnonzero(row[1:] == row[:-1])
    until[followed] = begin[followed + 1]
    token = np.where(name == PREFILL, np.minimum(_next(came, first[row], first[row + 1], begin), until), until)
    decodes = np.flatnonzero(token < until)
    order = np.argsort(np.concatenate([np.arange(len(row)), decodes]), kind="stable")
    columns = ((row, row[decodes]), (name, np.full(len(decodes), DECODE)), (begin, token[decodes]),
               (token, until[decodes]))
    return Phases(*(np.concatenate(pair)[order] for pair in columns))


def _next(came: Callable[[Ints], Floats], first: Ints, last: Ints, times: Floats) -> Floats:
    """When the first token after each of these *times* came, of those from *first* up to *last*; inf for none."""
    low, high = first.copy(), last.copy()
    while len(rows := np.flatnonzero(low < high)):
        middle = (low[rows] + high[rows]) // 2
        passed = came(middle) <= times[rows]
        low[rows[passed]], high[rows[~passed]] = middle[passed] + 1, middle[~passed]
    found, some = np.full(len(times), np.inf), low < last
    found[some] = came(low[some])
    return found


def _moves(history: History) -> tuple[Ints, Floats, Bools]:
    """Whose admissions and preemptions there were, and when."""
    requests, admitted = history.requests, history.events[Admitted]
    events = (admitted, requests.preempted)
    row, time = (np.concatenate(columns) for columns in zip(
        *((requests.rows(each["request_id"]), each["time"]) for each in events), strict=True))
    return row, time, np.arange(len(row)) < len(admitted["time"])
