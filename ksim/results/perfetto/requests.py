"""What each request lives through: queued, prefill, decode, preempted, as spans nested in its own."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ksim.flow.events import Admitted
from ksim.results.arrays import Floats
from ksim.results.history import History
from ksim.results.perfetto.slices import REQUESTS_PROCESS

#: About how many events one request takes.
REQUEST_EVENTS = 8

Phase = tuple[str, float, float]
Move = tuple[float, bool]


def request_spans(history: History, stride: int) -> Iterator[str]:
    """Every *stride*-th request with its phases."""
    requests, moves = history.requests, _moves(history)
    first, outputs, status = requests.first.tolist(), requests.output.tolist(), requests.status
    ends = np.where(requests.completed, requests.last_token, requests.rejected)
    ends = np.where(np.isnan(ends), history.duration, ends).tolist()
    for row in range(0, len(requests), stride):
        request, begin = requests.requests[row], float(requests.arrival[row])
        args = (f',"args":{{"request":{request.id},"prompt":{request.prompt},"output":{outputs[row]},'
                f'"status":"{status[row]}"}}')
        tokens = requests.tokens[first[row]: first[row + 1]]
        lines = [_edge("b", "request", request.id, begin, args)]
        for name, since, until in phases(begin, moves[row], tokens, ends[row]):
            lines += [_edge("b", name, request.id, since), _edge("e", name, request.id, until)]
        yield ",\n".join([*lines, _edge("e", "request", request.id, ends[row])])


def phases(arrival: float, moves: Sequence[Move], tokens: Sequence[float] | Floats, end: float) -> Iterator[Phase]:
    """The (name, from, to) of what a request lives through.

    *moves* are the times it was admitted (True) and preempted (False), *tokens*
    those of its output.
    """
    name, since = "queued", arrival
    for time, admitted in moves:
        yield from _stretch(name, since, time, tokens)
        name, since = "running" if admitted else "preempted", time
    yield from _stretch(name, since, end, tokens)


def _stretch(name: str, since: float, until: float, tokens: Sequence[float] | Floats) -> Iterator[Phase]:
    """One phase; while running, all is prefill, or recomputation, up to the next token."""
    if name != "running":
        yield name, since, until
        return
    place = bisect_right(tokens, since)
    first = min(float(tokens[place]), until) if place < len(tokens) else until
    yield "prefill", since, first
    if first < until:
        yield "decode", first, until


def _moves(history: History) -> dict[int, list[Move]]:
    """When each row was admitted and preempted, in order."""
    requests, moves = history.requests, defaultdict[int, list[Move]](list)
    for events, admitted in ((history.events[Admitted], True), (requests.preempted, False)):
        for row, time in zip(requests.rows(events["request_id"]).tolist(), events["time"].tolist(), strict=True):
            moves[row].append((time, admitted))
    for changes in moves.values():
        changes.sort()
    return moves


def _edge(phase: str, name: str, request: int, time: float, args: str = "") -> str:
    return (f'{{"name":"{name}","cat":"request","ph":"{phase}","id":{request},"pid":{REQUESTS_PROCESS},"tid":0,'
            f'"ts":{1e6 * time:.3f}{args}}}')
