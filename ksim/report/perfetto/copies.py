"""Copies of KV between tiers, on tracks of each engine and direction, and more where they overlap."""

from collections.abc import Iterator

import numpy as np

from ksim.flow.copied import Copied
from ksim.report.perfetto.steps import name_of
from ksim.report.perfetto.text import lines, thousandths, whole
from ksim.report.perfetto.transfers import process, side_by_side
from ksim.results.history import History

__all__ = ["copy_slices"]

#: Copies that are written at once.
_BLOCK = 1 << 12


def copy_slices(history: History, stride: int) -> Iterator[bytes | memoryview]:
    """The names of the tracks, and the copies of every *stride*-th request."""
    copies = history.events[Copied]
    if not len(copies["time"]):
        return
    of = process(history) + 2
    yield (",\n" + name_of("process", of, 0, "KV copies")).encode()
    begin, end = (np.rint(1e9 * copies[name]).astype(np.int64) for name in ("began", "time"))
    order = np.argsort(begin, kind="stable")
    order = order[history.copied_rows[order] % stride == 0]
    ways, numbers = np.unique([f"engine {engine}: {source} to {target}" for engine, source, target in zip(
        *(copies[name][order].tolist() for name in ("engine", "source", "target")), strict=True)], return_inverse=True)
    track, tracks = side_by_side(numbers, begin[order], end[order])
    for number, way in enumerate(tracks):
        yield (",\n" + name_of("thread", of, 1 + number, str(ways[way]))).encode()
    for first in range(0, len(order), _BLOCK):
        some, on = order[first: first + _BLOCK], track[first: first + _BLOCK]
        yield lines(
            ',\n{"name":"request ', whole(copies["request_id"][some]), f'","ph":"X","pid":{of},"tid":',
            whole(1 + on), ',"ts":', thousandths(begin[some]), ',"dur":', thousandths((end - begin)[some]),
            ',"args":{"bytes":', whole(np.rint(copies["bytes"][some]).astype(np.int64)),
            ',"tokens":', whole(copies["tokens"][some]), "}}")
