"""KV transfers on tracks of their own, one for each prefill engine and more where they overlap; counters of links."""

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
from attrs import frozen

from ksim.report.perfetto.steps import engine_process, name_of
from ksim.report.perfetto.text import lines, thousandths, whole
from ksim.report.perfetto.tracks import counter
from ksim.results.arrays import Floats, Ints, ints
from ksim.results.history import History
from ksim.results.link_use import busiest

#: Links with counters, those in most use; transfers that are written at once.
_LINKS, _BLOCK = 32, 1 << 12


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
    for place, (engine, since, until) in enumerate(zip(source.tolist(), begin.tolist(), end.tolist(), strict=True)):
        queue = busy.setdefault(engine, [])
        if queue and queue[0][0] <= since:
            _, track = heappop(queue)
        else:
            track = len(tracks)
            tracks.append(engine)
        chosen[place] = track
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
    for track, place in enumerate(transfers.tracks):
        yield (",\n" + name_of("thread", of, 1 + track, f"from engine {history.engines[place].engine}")).encode()
    splits, requests, numbers = history.splits, history.requests, ints(history.engines, "engine")
    shown = np.flatnonzero(transfers.row % stride == 0)
    order = shown[np.lexsort((transfers.begin[shown], transfers.track[shown]))]
    for first in range(0, len(order), _BLOCK):
        some = order[first: first + _BLOCK]
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
