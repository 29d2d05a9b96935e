"""A slice for every step on its stage, and what processes and threads are called."""

import json
from collections.abc import Iterator

import numpy as np

from ksim.report.perfetto.lanes import Lanes
from ksim.report.perfetto.text import lines, picked, thousandths, whole
from ksim.results.arrays import Ints
from ksim.results.history import History

REQUESTS_PROCESS = 1
_FIRST_ENGINE = 2
FIRST_RANK = 100
#: Steps that are written at once.
_BLOCK = 1 << 12


def engine_process(place: int) -> int:
    """The process id of the engine at *place*."""
    return _FIRST_ENGINE + place


def process_names(history: History, model: str = "", subject: str = "") -> Iterator[str]:
    """Name the processes and threads, and put them in order."""
    yield name_of("process", REQUESTS_PROCESS, 0, f"requests: {subject}" if subject else "requests")
    for place, built in enumerate(history.engines):
        process = engine_process(place)
        gpus = f"{built.ranks * built.stages} x {built.gpu}"
        yield name_of("process", process, 0, f"engine {built.engine}: {model or built.name} on {gpus}")
        for stage in range(built.stages):
            suffix = f", stage {stage}" if built.stages > 1 else ""
            yield name_of("thread", process, 1 + stage, f"steps{suffix}")
            for rank in range(stage * built.ranks, (stage + 1) * built.ranks):
                yield name_of("thread", process, FIRST_RANK + rank, f"rank {rank}{suffix}")


def name_of(kind: str, process: int, thread: int, name: str, below: int | None = None) -> str:
    """Name a process or a thread, and put it in order of its number or right *below* another thread."""
    place = f'"ph":"M","pid":{process},"tid":{thread}'
    index = process if kind == "process" else below or thread
    return (f'{{"name":"{kind}_name",{place},"args":{{"name":{json.dumps(name)}}}}},\n'
            f'{{"name":"{kind}_sort_index",{place},"args":{{"sort_index":{index}}}}}')


def step_slices(lanes: Lanes, stride: int) -> Iterator[memoryview]:
    """Every *stride*-th step, on each of its stages."""
    shown = np.flatnonzero(lanes.history.steps.lane_step % stride == 0)
    for begin in range(0, len(shown), _BLOCK):
        yield _slices(lanes, shown[begin: begin + _BLOCK])


def _slices(lanes: Lanes, shown: Ints) -> memoryview:
    steps = lanes.history.steps
    rows = steps.lane_step[shown]
    decodes, prefills = steps.decodes[rows], steps.prefills[rows]
    kinds = np.where(prefills == 0, 0, np.where(decodes > 0, 1, 2))
    return lines(
        ',\n{"name":"', picked(("decode", "mixed", "prefill"), kinds),
        '","ph":"X","pid":', whole(engine_process(0) + steps.engine[rows]), ',"tid":', whole(1 + lanes.stage[shown]),
        ',"ts":', thousandths(lanes.begin[shown]), ',"dur":', thousandths((lanes.end - lanes.begin)[shown]),
        ',"args":{"step":', whole(steps.index[rows]), ',"tokens":', whole(steps.tokens[rows]),
        ',"decodes":', whole(decodes), ',"prefills":', whole(prefills),
        ',"samples":', whole(steps.samples[rows]), ',"waiting":', whole(steps.waiting[rows]),
        ',"running":', whole(steps.running[rows]), ',"kv_blocks":', whole(steps.blocks[rows]), "}}")
