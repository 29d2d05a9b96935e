"""Requests, their KV transfers and the links of a fleet, on tracks of a trace.

The phases of a request (queued, prefill, decode, preempted, and the time before and between engines) are spans inside
its own.  Arrows go to the step after every admission, to that of the first token and to that of the last; those of a
split request also to the step of the last prompt token and to the transfer of its KV.  Perfetto draws arrows between
slices of threads only, so a request's begins at a short slice of its own, on a track of arrivals.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa
from attrs import frozen

from ksim.flow.events import Admitted
from ksim.flow.log import only
from ksim.results import arrow
from ksim.results.history import History
from ksim.results.series import busiest
from ksim.results.steps import Bools, Floats, Ints, ints
from ksim.views.perfetto.tracks import (
    REQUESTS_PROCESS,
    StageTimes,
    counter,
    engine_process,
    joined,
    lines,
    microseconds,
    name_of,
    picked,
    taken,
    thousandths,
    whole,
)

#: Links with counters, those in most use; transfers that are written at once.
_LINKS, _TRANSFERS_BLOCK = 32, 1 << 12


@frozen(eq=False)
class Transfers:
    """Transfers in the order of their beginning: the row of the request, times in nanoseconds, and the track of each.

    `splits` has its row in `Splits`.  `tracks` has the place of the engine of each track.
    """

    splits: Ints
    row: Ints
    begin: Ints
    end: Ints
    track: Ints
    tracks: list[int]

    @classmethod
    def of(cls, history: History) -> "Transfers":
        splits = history.splits
        some = np.flatnonzero(~np.isnan(splits.loaded))
        some = some[np.argsort(splits.began[some], kind="stable")]
        begin, end = (np.rint(1e9 * times[some]).astype(np.int64) for times in (splits.began, splits.loaded))
        track, tracks = side_by_side(splits.source[some], begin, end)
        return cls(some, splits.row[some], begin, end, track, tracks)


def side_by_side(source: Ints, begin: Ints, end: Ints) -> tuple[Ints, list[int]]:
    """The track of each transfer, the first one of its source that is free; and the source of each track."""
    tracks: list[int] = []
    busy: dict[int, list[tuple[int, int]]] = {}
    chosen = np.zeros(len(source), np.int64)
    for index, (engine, since, until) in enumerate(zip(source.tolist(), begin.tolist(), end.tolist(), strict=True)):
        queue = busy.setdefault(engine, [])
        if queue and queue[0][0] <= since:
            _, track = heappop(queue)
        else:
            track = len(tracks)
            tracks.append(engine)
        chosen[index] = track
        heappush(queue, (until, track))
    return chosen, tracks


def process(history: History) -> int:
    """The process id of transfers, after those of all engines."""
    return engine_process(len(history.engines))


def transfer_slices(history: History, transfers: Transfers, stride: int) -> Iterator[bytes | memoryview]:
    """The names of the tracks, and every *stride*-th request's transfer."""
    if not len(transfers.row):
        return
    of = process(history)
    yield (",\n" + name_of("process", of, 0, "KV transfers")).encode()
    for track, index in enumerate(transfers.tracks):
        yield (",\n" + name_of("thread", of, 1 + track, f"from engine {history.engines[index].engine}")).encode()
    splits, requests, numbers = history.splits, history.requests, ints(history.engines, "engine")
    shown = np.flatnonzero(transfers.row % stride == 0)
    order = shown[np.lexsort((transfers.begin[shown], transfers.track[shown]))]
    for first in range(0, len(order), _TRANSFERS_BLOCK):
        some = order[first: first + _TRANSFERS_BLOCK]
        which = transfers.splits[some]
        yield lines(
            ',\n{"name":"request ', whole(requests.ids[transfers.row[some]]), f'","ph":"X","pid":{of},"tid":',
            whole(1 + transfers.track[some]), ',"ts":', thousandths(transfers.begin[some]),
            ',"dur":', thousandths((transfers.end - transfers.begin)[some]),
            ',"args":{"bytes":', whole(_rounded(splits.bytes[which])),
            ',"tokens":', whole(_rounded(splits.tokens[which])),
            ',"to_engine":', whole(numbers[splits.target[which]]),
            ',"alone_us":', whole(_rounded(1e6 * splits.alone[which])), "}}")


def link_counters(history: History, stride: int) -> Iterator[bytes | memoryview]:
    """Counters of MB/s of the busiest links."""
    links = busiest(history, _LINKS)
    if links:
        of = process(history) + 1
        yield (",\n" + name_of("process", of, 0, "links, MB/s")).encode()
        for link in links:
            rates = _rounded(1e-6 * link.capacity * link.use.values)
            yield from counter(link.name.replace('"', "'"), of, link.use.times[::stride], rates[::stride])


def _rounded(values: Floats) -> Ints:
    return np.rint(values).astype(np.int64)


#: About how many events one request takes.
REQUEST_EVENTS = 12
#: Edges of spans, or arrows, that are written at once.
_BLOCK = 1 << 12
#: The thread of arrivals, and how long, in ns, a slice there lasts at least and at most.
ARRIVALS, _SHORTEST, _LONGEST = 1, 100, 1_000_000

BEFORE, QUEUED, PREFILL, DECODE, PREEMPTED, BETWEEN, _REQUEST = range(7)
_NONE = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
_NAMES = ("before the engine", "queued", "prefill", "decode", "preempted", "between engines", "request")


@frozen(eq=False)
class Phases:
    """Phases of requests, one after another for each: columns of (phases,)."""

    row: Ints
    name: Ints
    begin: Floats
    end: Floats


def request_spans(history: History, stride: int) -> Iterator[memoryview]:
    """Every *stride*-th request with its phases."""
    requests = history.requests
    ends = np.where(requests.completed, requests.last_token, np.fmin(requests.rejected, requests.failed))
    ends = np.where(np.isnan(ends), history.duration, ends)
    found = phases(requests.arrival, _received(history), _moves(history), requests.came, requests.first, ends,
                   _hand_overs(history))
    arguments = _arguments(history)
    row, name, edge, time, argument = _edges(found, requests.arrival, ends, stride)
    for begin in range(0, len(row), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield lines(
            ',\n{"name":"', picked(_NAMES, name[part]), '","cat":"request","ph":"', picked(("b", "e"), edge[part]),
            '","id":', whole(requests.ids[row[part]]), f',"pid":{REQUESTS_PROCESS},"tid":0,"ts":',
            microseconds(time[part]), [taken(arguments, argument[part])], "}")


def _arguments(history: History) -> pa.Array:
    """The arguments of each request's span, and an empty text at the end."""
    requests = history.requests
    (texts,) = joined(
        ',"args":{"request":', whole(requests.ids), ',"prompt":', whole(requests.prompt), ',"output":',
        whole(requests.output), ',"status":"', picked(requests.STATUS, requests.status_numbers), '"}')
    return pa.concat_arrays([texts, arrow.texts([""])])


def _edges(found: Phases, arrival: Floats, ends: Floats, stride: int) -> tuple[Ints, Ints, Ints, Floats, Ints]:
    """The begins and ends of spans, request by request, each within that of the request.

    Columns are the row of the request, the name, whether the span ends (1), the time, and the row of its arguments.
    """
    count, several = len(arrival), len(found.row)
    every, nothing = np.arange(count), np.full(2 * several + count, count)
    row = np.concatenate([every, np.repeat(found.row, 2), every])
    name = np.concatenate([np.full(count, _REQUEST), np.repeat(found.name, 2), np.full(count, _REQUEST)])
    edge = np.concatenate([np.zeros(count, np.int64), np.tile([0, 1], several), np.ones(count, np.int64)])
    time = np.concatenate([arrival, np.stack([found.begin, found.end], axis=1).ravel(), ends])
    order = np.argsort(row, kind="stable")
    order = order[row[order] % stride == 0]
    return row[order], name[order], edge[order], time[order], np.concatenate([every, nothing])[order]


def phases(arrival: Floats, received: Floats, moves: tuple[Ints, Floats, Bools], came: Callable[[Ints], Floats],
           first: Ints, ends: Floats, hand_overs: tuple[Ints, Floats, Ints] = _NONE) -> Phases:
    """The phases of requests from their *arrival* to their *ends*; their engines *received* them, nan for never.

    *moves* say which was admitted (True) or preempted (False) when; *came* tells when the tokens at some places came,
    of which those of row r begin at ``first[r]``.  While a request runs, all is prefill, or recomputation, up to its
    next token.  *hand_overs* say which began to be BETWEEN engines, or to DECODE on the second, when.
    """
    (whose, when, admitted), (handed, then, named) = moves, hand_overs
    on_the_way = np.flatnonzero(received > arrival)
    row = np.concatenate([np.arange(len(arrival)), on_the_way, whose, handed])
    begin = np.concatenate([arrival, received[on_the_way], when, then])
    name = np.concatenate([np.where(received <= arrival, QUEUED, BEFORE), np.full(len(on_the_way), QUEUED),
                           np.where(admitted, PREFILL, PREEMPTED), named])
    rank = (name == PREFILL) * 2 + (name == PREEMPTED) + (name == DECODE) * 2 + (name == BETWEEN)
    order = np.lexsort((rank, begin, row))
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


def _received(history: History) -> Floats:
    """When each request's engine had it; nan for those that a gateway let through to none."""
    requests = history.requests
    stopped = np.isnan(requests.admitted) & (requests.received <= requests.arrival)
    return np.where(stopped & history.log.gated, np.nan, requests.received)


def _moves(history: History) -> tuple[Ints, Floats, Bools]:
    """Admissions and preemptions: the row of the request, the time, and whether it was admitted."""
    requests, admitted = history.requests, history.events[Admitted]
    if len(splits := history.splits):
        rows = requests.rows(admitted["request_id"])
        loaded = np.full(len(requests), np.nan)
        loaded[splits.row] = np.where(np.isnan(splits.prefilled), np.nan, splits.admitted)
        admitted = only(admitted, admitted["time"] != loaded[rows])
    events = (admitted, requests.preempted)
    row, time = (np.concatenate(columns) for columns in zip(
        *((requests.rows(each["request_id"]), each["time"]) for each in events), strict=True))
    return row, time, np.arange(len(row)) < len(admitted["time"])


def _hand_overs(history: History) -> tuple[Ints, Floats, Ints]:
    """When split requests left their prefill engines, and when they came to their decode engines."""
    splits = history.splits
    left, came = splits.between
    known, second = ~np.isnan(left), ~np.isnan(left) & ~np.isnan(came)
    return (np.concatenate([splits.row[known], splits.row[second]]), np.concatenate([left[known], came[second]]),
            np.repeat([BETWEEN, DECODE], [known.sum(), second.sum()]))


def flows(timed: StageTimes, transfers: Transfers, stride: int) -> Iterator[bytes | memoryview]:
    """Every *stride*-th request's slice of arrival, and its arrows to those of every *stride*-th step."""
    requests = timed.history.requests
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
    yield from _arrows(timed, transfers, sources, stride)


def _arrivals(times: Ints) -> tuple[Ints, Ints]:
    """When the slice of each arrival begins and how long it lasts, one after another, in nanoseconds.

    Requests that arrive at once are a tenth of a microsecond apart.
    """
    room = np.diff(times, append=times[-1:] + _LONGEST)
    lasts = np.clip(room, _SHORTEST, _LONGEST)
    earlier = np.cumsum(lasts) - lasts
    return np.maximum.accumulate(times - earlier) + earlier, lasts


def _arrows(timed: StageTimes, transfers: Transfers, sources: Ints, stride: int) -> Iterator[memoryview]:
    """The arrows of each request that came to a shown step, from *sources* in nanoseconds."""
    row, process, thread, middle = _stops(timed, transfers, stride)
    if not len(row):
        return
    last = np.append(row[1:] != row[:-1], True)
    of, requests = np.unique(row), timed.history.requests
    columns = (np.concatenate([of, row]), np.concatenate([np.zeros(len(of), np.int64), 1 + last]),
               np.concatenate([np.full(len(of), REQUESTS_PROCESS), process]),
               np.concatenate([np.full(len(of), ARRIVALS), thread]),
               np.concatenate([sources[of], middle]))
    for first in range(0, len(columns[0]), _BLOCK):
        whose, kind, pid, tid, time = (column[first: first + _BLOCK] for column in columns)
        yield lines(',\n{"name":"request","cat":"request","ph":"', picked(("s", "t", 'f","bp":"e'), kind),
                    '","id":', whole(requests.ids[whose]), ',"pid":', whole(pid), ',"tid":', whole(tid),
                    ',"ts":', thousandths(time), "}")


def _stops(timed: StageTimes, transfers: Transfers, stride: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Where arrows of each request go, in the order of time: its row, process and thread, and the time in ns."""
    (row, index), steps = _visited(timed, stride), timed.history.steps
    columns = (row, engine_process(0) + steps.engine[steps.stage_step_rows[index]], 1 + timed.stage[index],
               timed.begin[index] + (timed.end - timed.begin)[index] // 2)
    some = np.flatnonzero(transfers.row % stride == 0)
    if not len(some):
        return columns
    moved = (transfers.row[some], np.full(len(some), engine_process(len(timed.history.engines))),
             1 + transfers.track[some], (transfers.begin + (transfers.end - transfers.begin) // 2)[some])
    row, process, thread, time = (np.concatenate(pair) for pair in zip(columns, moved, strict=True))
    order = np.lexsort((time, row))
    return row[order], process[order], thread[order], time[order]


def _visited(timed: StageTimes, stride: int) -> tuple[Ints, Ints]:
    """The row of each request and the stage step that an arrow of it goes to, in the order of time.

    They are the first stages of the steps after its admissions, of its last prompt token on a prefill engine, of its
    first and of its last token, each once.
    """
    history, steps = timed.history, timed.history.steps
    requests, admitted = history.requests, history.events[Admitted]
    some = np.flatnonzero(requests.output > 0)
    first, last = (requests.token_steps[places] for places in (requests.first[some], requests.first[some + 1] - 1))
    splits = history.splits
    row = np.concatenate([requests.rows(admitted["request_id"]), some, some, splits.row])
    step = np.concatenate([_next_steps(timed, admitted["engine"], admitted["time"]), first, last, splits.last_prefill])
    shown = (step >= 0) & (row % stride == 0) & (step % stride == 0)
    pairs = np.unique(np.stack([row[shown], step[shown]], axis=1).astype(np.int64), axis=0)
    of_step = np.searchsorted(steps.stage_step_rows, pairs[:, 1])
    order = np.lexsort((timed.begin[of_step], pairs[:, 0]))
    return pairs[order, 0], of_step[order]


def _next_steps(timed: StageTimes, engines: Ints, times: Ints) -> Ints:
    """The row of the first step that each of these *engines* scheduled at these *times* or later; -1 for none."""
    steps, places = timed.history.steps, timed.history.steps.places(engines)
    found = np.full(len(times), -1)
    for index in range(len(timed.history.engines)):
        rows, mine = steps.rows(index), places == index
        ahead = np.searchsorted(steps.scheduled[rows], times[mine])
        found[mine] = np.where(ahead < rows.stop - rows.start, rows.start + ahead, -1)
    return found
