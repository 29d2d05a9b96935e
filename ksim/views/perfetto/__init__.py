"""A run as a trace for ui.perfetto.dev: kernels of every rank, steps, requests and counters on one clock.

The format is Chrome's trace event JSON; times are in microseconds from the
start of the run, to the nanosecond.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ksim.results.history import History
from ksim.views.perfetto.kernels import copy_slices, cut_marks, kernel_slices
from ksim.views.perfetto.requests import (
    REQUEST_EVENTS,
    Transfers,
    flows,
    link_counters,
    request_spans,
    transfer_slices,
)
from ksim.views.perfetto.tracks import StageTimes, adapter_slices, counters, host_slices, process_names, step_slices

#: Kernel slices beyond this are left out unless a window asks for them.
KERNEL_BUDGET = 50_000
#: Steps, counters and requests beyond this many events are thinned out.
EVENT_BUDGET = 1_000_000
_STEP_EVENTS = 8

# Higher levels take several times as long for a tenth of the size.
_LEVEL = 3


def write_trace(history: History, path: Path, window: tuple[float, float] | None = None, model: str = "",
                subject: str = "") -> None:
    """Write a gzipped trace to *path*; the same run gives the same bytes.

    Kernels are shown for the steps that touch *window*, (from, to) in seconds, or
    else for the first steps up to about `KERNEL_BUDGET` slices.  The *model* names the engines, the *subject* of the
    run its requests.
    """
    with path.open("wb") as file, gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        for piece in trace(history, window, model, subject):
            packed.write(piece)


def trace(history: History, window: tuple[float, float] | None = None, model: str = "",
          subject: str = "") -> Iterator[bytes | memoryview]:
    """The text of the trace, in pieces, as `write_trace` writes it."""
    timed = StageTimes.of(history)
    kernels = timed.within(window) if window else timed.first(KERNEL_BUDGET)
    events = _STEP_EVENTS * len(history.steps) + REQUEST_EVENTS * len(history.requests)
    stride = -(-events // EVENT_BUDGET) or 1
    notes = json.dumps(_notes(timed, kernels, stride))
    yield f'{{"displayTimeUnit":"ms","otherData":{notes},"traceEvents":[\n'.encode()
    yield ",\n".join(process_names(history, model, subject)).encode()
    yield from request_spans(history, stride)
    yield from step_slices(timed, stride)
    yield from host_slices(history, stride)
    yield from adapter_slices(history)
    transfers = Transfers.of(history)
    yield from transfer_slices(history, transfers, stride)
    yield from flows(timed, transfers, stride)
    yield from counters(history, stride)
    yield from link_counters(history, stride)
    yield from copy_slices(history, stride)
    yield from kernel_slices(timed, kernels)
    yield from cut_marks(timed, kernels)
    yield b"\n]}\n"


def _notes(timed: StageTimes, kernels: np.ndarray[Any, Any], stride: int) -> dict[str, Any]:
    """Notes on what the trace holds and what was left out of it."""
    shown, total = int(timed.slices[kernels].sum()), int(timed.slices.sum())
    notes = {"kernel_slices": shown, "kernel_slices_left_out": total - shown}
    if stride > 1:
        return {**notes, "note": f"of steps, counters and requests, one in {stride} is shown"}
    return notes
