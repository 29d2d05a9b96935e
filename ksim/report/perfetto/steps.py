"""A slice for every step on each pipeline stage, and the names of processes and threads."""

import json
from collections.abc import Iterator

import numpy as np
from attrs import frozen

from ksim.report.perfetto.text import lines, picked, thousandths, whole
from ksim.results.arrays import Floats, Ints, each, sums
from ksim.results.history import History


@frozen(eq=False)
class StageTimes:
    """When each stage step runs, in nanoseconds: one row for each, as in `StageSteps`.

    `slices` is the number of its kernel slices on all its ranks.
    """

    history: History
    stage: Ints
    begin: Ints
    end: Ints
    slices: Ints

    @classmethod
    def of(cls, history: History) -> "StageTimes":
        steps = history.steps
        stage, blocks = steps.stage_steps.stage, steps.stage_steps.blocks
        begin, end = np.zeros(len(stage), np.int64), np.zeros(len(stage), np.int64)
        for place, built in enumerate(history.engines):
            ready = steps.start[steps.rows(place)]
            for number in range(built.stages):
                rows = np.flatnonzero((steps.engine[steps.stage_step_rows] == place) & (stage == number))
                begin[rows], end[rows], ready = _in_turn(ready, steps.stage_steps.seconds[rows])
        sizes = {key: sum(block.repeat * len(block.places) for block in plan)
                 for key, plan in dict(zip(map(id, blocks), blocks, strict=True)).items()}
        return cls(history, stage, begin, end, each(blocks, lambda plan: sizes[id(plan)]) * steps.stage_ranks)

    def first(self, budget: int) -> Ints:
        """The rows of the earliest steps that together have at most *budget* slices, and of one step at least."""
        steps = self.history.steps
        order = np.argsort(steps.start, kind="stable")
        total = np.cumsum(sums(steps.stage_step_rows, self.slices, len(steps))[order])
        chosen = order[: max(1, int(np.searchsorted(total, budget, side="right")))]
        return np.flatnonzero(np.isin(steps.stage_step_rows, chosen))

    def within(self, window: tuple[float, float]) -> Ints:
        """The rows that touch *window*, in seconds."""
        after, before = (round(1e9 * moment) for moment in window)
        return np.flatnonzero((self.end > after) & (self.begin < before))


def _in_turn(ready: Floats, seconds: Floats) -> tuple[Ints, Ints, Floats]:
    """Begin and end of each step on a stage that takes them in turn, each once it is *ready*; the end in seconds too.

    The log says when a step begins on its first stage; on the others it begins
    when the stage before is through with it and this one with the step before.
    """
    earlier = np.cumsum(seconds) - seconds
    begin = np.maximum.accumulate(ready - earlier) + earlier
    first, last = (np.rint(1e9 * moment).astype(np.int64) for moment in (begin, begin + seconds))
    last[:-1] = np.minimum(last[:-1], first[1:])
    return first, last, begin + seconds


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
        gpus, pool = f"{built.ranks * built.stages} x {built.gpu}", f", {built.pool}" if built.pool else ""
        yield name_of("process", process, 0, f"engine {built.engine}{pool}: {model or built.name} on {gpus}")
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


def step_slices(timed: StageTimes, stride: int) -> Iterator[memoryview]:
    """Every *stride*-th step, on each of its stages."""
    shown = np.flatnonzero(timed.history.steps.stage_step_rows % stride == 0)
    for begin in range(0, len(shown), _BLOCK):
        yield _slices(timed, shown[begin: begin + _BLOCK])


def _slices(timed: StageTimes, shown: Ints) -> memoryview:
    steps = timed.history.steps
    rows = steps.stage_step_rows[shown]
    decodes, prefills = steps.decodes[rows], steps.prefills[rows]
    kinds = np.where(prefills == 0, 0, np.where(decodes > 0, 1, 2))
    return lines(
        ',\n{"name":"', picked(("decode", "mixed", "prefill"), kinds),
        '","ph":"X","pid":', whole(engine_process(0) + steps.engine[rows]), ',"tid":', whole(1 + timed.stage[shown]),
        ',"ts":', thousandths(timed.begin[shown]), ',"dur":', thousandths((timed.end - timed.begin)[shown]),
        ',"args":{"step":', whole(steps.index[rows]), ',"tokens":', whole(steps.tokens[rows]),
        ',"decodes":', whole(decodes), ',"prefills":', whole(prefills),
        ',"samples":', whole(steps.samples[rows]), ',"waiting":', whole(steps.waiting[rows]),
        ',"running":', whole(steps.running[rows]), ',"kv_blocks":', whole(steps.blocks[rows]), "}}")
