"""Loads of LoRA adapters, on a thread of each engine that has some: from when its worker turns to one until the copies
are launched."""

import json
from collections.abc import Iterator

import numpy as np

from ksim.flow.events import AdapterLoaded
from ksim.report.perfetto.steps import FIRST_RANK, engine_process, name_of
from ksim.report.perfetto.text import lines, picked, thousandths, whole
from ksim.results.arrays import Floats, Ints
from ksim.results.history import History

__all__ = ["adapter_slices"]

#: Below the steps of an engine's stages.
_THREAD = FIRST_RANK - 1


def adapter_slices(history: History) -> Iterator[bytes | memoryview]:
    """The names of the threads, and every load."""
    loads = history.log.columns(AdapterLoaded)
    for place, built in enumerate(history.engines):
        some = np.flatnonzero(loads["engine"] == built.engine)
        if not len(some):
            continue
        process = engine_process(place)
        yield (",\n" + name_of("thread", process, _THREAD, "adapters")).encode()
        end = _in_turn(loads["time"][some], loads["seconds"][some])
        begin = end - np.rint(1e9 * loads["seconds"][some]).astype(np.int64)
        names = [json.dumps(f"load {name}") for name in loads["adapter"][some]]
        yield lines(',\n{"name":', picked(names, np.arange(len(names))),
                    f',"ph":"X","pid":{process},"tid":{_THREAD},"ts":', thousandths(np.maximum(begin, 0)),
                    ',"dur":', thousandths(end - np.maximum(begin, 0)), ',"args":{"bytes":',
                    whole(np.rint(loads["size"][some]).astype(np.int64)), ',"from_disk":',
                    whole(loads["read"][some].astype(np.int64)), "}}")


def _in_turn(times: Floats, seconds: Floats) -> Ints:
    """When each load ends, in nanoseconds: those of one step follow on each other, the last ends at their time."""
    after = np.zeros(len(times))
    for place in range(len(times) - 2, -1, -1):
        if times[place] == times[place + 1]:
            after[place] = after[place + 1] + seconds[place + 1]
    return np.rint(1e9 * (times - after)).astype(np.int64)
