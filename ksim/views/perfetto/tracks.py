"""Engines on tracks of a trace: host work, steps by pipeline stage, loads of LoRA adapters, and counters.

Events are made as columns of JSON text, many lines at once.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import frozen
from pyarrow import compute

from ksim.flow.events import AdapterLoaded
from ksim.results import arrow
from ksim.results.history import History
from ksim.results.series import engine_power
from ksim.results.steps import Floats, Ints, each, sums

__all__ = ["adapter_slices", "Column", "whole", "thousandths", "microseconds", "picked", "taken", "joined", "lines",
           "StageTimes", "REQUESTS_PROCESS", "FIRST_RANK", "engine_process", "process_names", "name_of", "step_slices",
           "host_slices", "counters", "counter"]


Column = list[pa.Array]

_DIGITS = arrow.texts(f".{number:03}" for number in range(1000))


def whole(numbers: Ints) -> Column:
    """Whole numbers."""
    return [arrow.numbers(numbers).cast(pa.string())]


def thousandths(numbers: Ints) -> Column:
    """A thousand times less than *numbers*, which are whole and not negative, with three digits after the point."""
    most, rest = np.divmod(numbers, 1000)
    return [*whole(most), taken(_DIGITS, rest)]


def microseconds(times: Floats) -> Column:
    """*times* in seconds, to the nanosecond."""
    return thousandths(np.rint(1e9 * times).astype(np.int64))


def picked(texts: Iterable[str], numbers: Ints) -> Column:
    """The text with each of these *numbers*."""
    return [taken(arrow.texts(texts), numbers)]


def taken(texts: pa.Array, numbers: Ints) -> pa.Array:
    """The *texts* at these places."""
    return texts.take(arrow.numbers(numbers))


def joined(*parts: str | Column) -> Column:
    """These parts in turn, row by row."""
    pieces = [piece for part in parts for piece in ([part] if isinstance(part, str) else part)]
    # pyarrow would make scalars of the texts by itself, but load pandas first.
    constants = iter(arrow.texts([*(piece for piece in pieces if isinstance(piece, str)), ""]))
    columns = [next(constants) if isinstance(piece, str) else piece for piece in pieces]
    return [compute.binary_join_element_wise(*columns, next(constants))]


def lines(*parts: str | Column) -> memoryview:
    """One line for each row, of these parts in turn: all of them together."""
    (column,) = joined(*parts)
    _, ends, text = column.buffers()
    if not len(column) or text is None:
        return memoryview(b"")
    bounds: Any = np.frombuffer(ends, np.int32, len(column) + 1)
    return memoryview(text)[: int(bounds[-1])]


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
        for index, built in enumerate(history.engines):
            ready = steps.start[steps.rows(index)]
            for number in range(built.stages):
                rows = np.flatnonzero((steps.engine[steps.stage_step_rows] == index) & (stage == number))
                begin[rows], end[rows], ready = _steps_in_turn(ready, steps.stage_steps.seconds[rows])
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


def _steps_in_turn(ready: Floats, seconds: Floats) -> tuple[Ints, Ints, Floats]:
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


def engine_process(index: int) -> int:
    """The process id of the engine at *index*."""
    return _FIRST_ENGINE + index


def process_names(history: History, model: str = "", subject: str = "") -> Iterator[str]:
    """Name the processes and threads, and put them in order."""
    yield name_of("process", REQUESTS_PROCESS, 0, f"requests: {subject}" if subject else "requests")
    for index, built in enumerate(history.engines):
        process = engine_process(index)
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


#: Threads of each engine: making batches and taking in tokens overlap where several workers prepare the inputs.
MAKES, TAKES = 50, 51
_NAMES = {MAKES: "host: schedule and prepare", TAKES: "host: take in tokens"}


def host_slices(history: History, stride: int) -> Iterator[bytes | memoryview]:
    """Both tracks of each engine, of every *stride*-th step."""
    steps = history.steps
    for index in range(len(history.engines)):
        rows, process = steps.rows(index), engine_process(index)
        for thread, name, begin, end in ((MAKES, "schedule", steps.scheduled[rows], steps.prepared[rows]),
                                         (TAKES, "take in", steps.end[rows], steps.taken[rows])):
            yield (",\n" + name_of("thread", process, thread, _NAMES[thread])).encode()
            since, until = _in_turn(begin, end)
            shown = np.flatnonzero((np.arange(rows.start, rows.stop) % stride == 0) & (until > since))
            for first in range(0, len(shown), _BLOCK):
                some = shown[first: first + _BLOCK]
                yield lines(f',\n{{"name":"{name}","ph":"X","pid":{process},"tid":{thread},"ts":',
                            thousandths(since[some]), ',"dur":', thousandths((until - since)[some]),
                            ',"args":{"step":', whole(steps.index[rows][some]), "}}")


def _in_turn(begin: Floats, end: Floats) -> tuple[Ints, Ints]:
    """In nanoseconds; a host does one after another, so that each begins no earlier than the one ahead of it ends."""
    until = np.maximum.accumulate(np.rint(1e9 * end).astype(np.int64))
    since = np.rint(1e9 * begin).astype(np.int64)
    since[1:] = np.maximum(since[1:], until[:-1])
    return np.minimum(since, until), until


def counters(history: History, stride: int) -> Iterator[memoryview]:
    """The counters of each engine, each at the steps it changes in; of those, every *stride*-th."""
    steps = history.steps
    for index in range(len(history.engines)):
        process, rows = engine_process(index), steps.rows(index)
        idle = history.idle_after[rows] > 0
        times = np.concatenate([steps.scheduled[rows], steps.end[rows][idle]])
        order = np.argsort(times, kind="stable")
        for name in ("waiting", "running", "blocks"):
            values = np.concatenate([getattr(steps, name)[rows], np.zeros(int(idle.sum()), np.int64)])
            label = "KV blocks" if name == "blocks" else name
            yield from counter(label, process, times[order][::stride], values[order][::stride])
        if not np.isnan(steps.stage_steps.scaling.clock).any() and len(times):
            clocks = np.rint(1e-6 * _of_steps(history, rows)).astype(np.int64)
            yield from counter("SM MHz", process, steps.start[rows][::stride], clocks[::stride])
        power = engine_power(history, index)
        yield from counter("watts", process, power.times[::stride], np.rint(power.values[::stride]).astype(np.int64))


def _of_steps(history: History, rows: slice) -> Floats:
    """The SM clock of each step's first stage, in Hz."""
    steps = history.steps
    first = np.searchsorted(steps.stage_step_rows, np.arange(rows.start, rows.stop))
    clocks: Floats = steps.stage_steps.scaling.clock[first]
    return clocks


def counter(name: str, process: int, times: Floats, values: Ints) -> Iterator[memoryview]:
    """A track of whole numbers over time, told where they change."""
    changed = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(values)])
    for begin in range(0, len(changed), _BLOCK):
        rows = changed[begin: begin + _BLOCK]
        yield lines(f',\n{{"name":"{name}","ph":"C","pid":{process},"tid":0,"ts":', microseconds(times[rows]),
                    ',"args":{"value":', whole(values[rows]), "}}")


#: Below the steps of an engine's stages.
_THREAD = FIRST_RANK - 1


def adapter_slices(history: History) -> Iterator[bytes | memoryview]:
    """The names of the threads, and every load."""
    loads = history.log.columns(AdapterLoaded)
    for index, built in enumerate(history.engines):
        some = np.flatnonzero(loads["engine"] == built.engine)
        if not len(some):
            continue
        process = engine_process(index)
        yield (",\n" + name_of("thread", process, _THREAD, "adapters")).encode()
        end = _adapters_in_turn(loads["time"][some], loads["seconds"][some])
        begin = end - np.rint(1e9 * loads["seconds"][some]).astype(np.int64)
        names = [json.dumps(f"load {name}") for name in loads["adapter"][some]]
        yield lines(',\n{"name":', picked(names, np.arange(len(names))),
                    f',"ph":"X","pid":{process},"tid":{_THREAD},"ts":', thousandths(np.maximum(begin, 0)),
                    ',"dur":', thousandths(end - np.maximum(begin, 0)), ',"args":{"bytes":',
                    whole(np.rint(loads["size"][some]).astype(np.int64)), ',"from_disk":',
                    whole(loads["read"][some].astype(np.int64)), "}}")


def _adapters_in_turn(times: Floats, seconds: Floats) -> Ints:
    """When each load ends, in nanoseconds: those of one step follow on each other, the last ends at their time."""
    after = np.zeros(len(times))
    for index in range(len(times) - 2, -1, -1):
        if times[index] == times[index + 1]:
            after[index] = after[index + 1] + seconds[index + 1]
    return np.rint(1e9 * (times - after)).astype(np.int64)
