"""One row for each choice of a router, as a pyarrow table.

docs/glossary.md describes every column.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ksim.flow.events import Chosen, Seen
from ksim.flow.log import Columns, Log
from ksim.results.arrow import numbers, table
from ksim.results.steps import each, offsets

__all__ = ["routing_rows", "routing_table"]

#: What is a share or a number of seconds, and not a count.
_FLOATS = ("kv_usage", "scraped_s", "score")


def routing_table(log: Log) -> pa.Table | None:
    """One row per choice in order of time, with lists that have a number for each engine to choose from.

    None for a run whose router saw nothing, or had nothing to choose from.
    """
    columns = log.columns(Chosen)
    return routing_rows(columns) if len(columns["time"]) else None


def routing_rows(columns: Columns) -> pa.Table:
    """The same from events of kind `Chosen`, of which there are some."""
    seen: Sequence[Seen] = columns["seen"].tolist()
    prefill = columns["prefill_engine"]
    bounds = offsets(each([one.engines for one in seen], len)).astype(np.int32)
    return table({
        "request": columns["request_id"], "attempt": columns["attempt"], "time_s": columns["time"],
        "engine": columns["engine"], "prefill_engine": numbers(prefill, prefill < 0),
        "engines": _lists(bounds, [one.engines for one in seen], np.int64),
        **{name: _lists(bounds, [one.columns[name] for one in seen], np.float64 if name in _FLOATS else np.int64)
           for name in seen[0].columns}})


def _lists(bounds: Any, values: Sequence[Sequence[float]], kind: Any) -> pa.Array:
    """A list of numbers for each row; those that were not asked for are null."""
    flat = np.concatenate([np.asarray(row, kind) for row in values])
    missing = np.isneginf(flat) if kind is np.float64 else flat < 0
    return pa.ListArray.from_arrays(numbers(bounds), numbers(flat, missing))
