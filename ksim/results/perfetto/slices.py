"""What runs when: a slice for every step on its stage, and for every kernel on each of its ranks."""

import json
from collections.abc import Iterator

import numpy as np

from ksim.flow.timeline import Span, Timeline
from ksim.results.arrays import Ints
from ksim.results.history import History
from ksim.results.perfetto.lanes import Lanes

REQUESTS_PROCESS = 1
_FIRST_ENGINE = 2
_FIRST_RANK = 100
#: Where ranks compute and communicate at once, the latter has a thread of its own.
_FIRST_LINK = 10_100

_STEP = ('{"name":"%s","ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{"step":%d,"tokens":%d,"decodes":%d,'
         '"prefills":%d,"samples":%d,"waiting":%d,"running":%d,"kv_blocks":%d}}')


def engine_process(place: int) -> int:
    """The process id of the engine at *place*."""
    return _FIRST_ENGINE + place


def process_names(history: History) -> Iterator[str]:
    """Name the processes and threads, and put them in order."""
    yield _name("process", REQUESTS_PROCESS, 0, "requests")
    for place, built in enumerate(history.engines):
        process = engine_process(place)
        gpus = f"{built.ranks * built.stages} x {built.gpu}"
        yield _name("process", process, 0, f"engine {built.engine}: {built.name} on {gpus}")
        for stage in range(built.stages):
            suffix = f", stage {stage}" if built.stages > 1 else ""
            yield _name("thread", process, 1 + stage, f"steps{suffix}")
            for rank in range(stage * built.ranks, (stage + 1) * built.ranks):
                yield _name("thread", process, _FIRST_RANK + rank, f"rank {rank}{suffix}")


def _name(kind: str, process: int, thread: int, name: str, below: int | None = None) -> str:
    """Name a process or a thread, and put it in order of its number or right *below* another thread."""
    place = f'"ph":"M","pid":{process},"tid":{thread}'
    index = process if kind == "process" else below or thread
    return (f'{{"name":"{kind}_name",{place},"args":{{"name":{json.dumps(name)}}}}},\n'
            f'{{"name":"{kind}_sort_index",{place},"args":{{"sort_index":{index}}}}}')


def step_slices(lanes: Lanes, stride: int) -> Iterator[str]:
    """Every *stride*-th step, on each of its stages."""
    steps = lanes.history.steps
    shown = np.flatnonzero(steps.lane_step % stride == 0)
    numbers = steps.lane_step[shown]
    begin, duration = lanes.begin[shown] / 1e3, (lanes.end - lanes.begin)[shown] / 1e3
    known = (steps.index, steps.tokens, steps.decodes, steps.prefills, steps.makeup.samples, steps.waiting,
             steps.running, steps.blocks)
    columns = (engine_process(0) + steps.engine[numbers], 1 + lanes.stage[shown], begin, duration,
               *(column[numbers] for column in known))
    for values in zip(*(column.tolist() for column in columns), strict=True):
        decodes, prefills = values[6:8]
        yield _STEP % ("decode" if not prefills else "mixed" if decodes else "prefill", *values)


def kernel_slices(lanes: Lanes, rows: Ints) -> Iterator[str]:
    """The kernels of the lanes at *rows*, on every rank of their stage."""
    steps, known, named = lanes.history.steps, dict[int, str](), set[tuple[int, int]]()
    pace = steps.lanes.pace("time")
    for row in rows.tolist():
        place = int(steps.engine[steps.lane_step[row]])
        ranks, lane = lanes.history.engines[place].ranks, steps.lanes.timeline(row)
        slices = _unfolded(lane, float(pace[row]), int(lanes.begin[row]), int(lanes.end[row]), known)
        process = engine_process(place)
        for rank in range(lanes.stage[row] * ranks, (lanes.stage[row] + 1) * ranks):
            for first, own in zip((_FIRST_RANK, _FIRST_LINK), slices, strict=True):
                head = f'{{"ph":"X","pid":{process},"tid":{first + rank},'
                if own:
                    yield head + (",\n" + head).join(own)
            if slices[1] and (process, rank) not in named:
                named.add((process, rank))
                yield _name("thread", process, _FIRST_LINK + rank, f"rank {rank}, communication", _FIRST_RANK + rank)


def _unfolded(lane: Timeline, pace: float, begin: int, end: int, known: dict[int, str]) -> tuple[list[str], list[str]]:
    """The kernels of one rank in one step, clocked ones at *pace*, each without what the ranks differ in.

    Collectives that share the GPU with products are apart, in the second list.
    """
    spans = [lane.fills[span] if isinstance(span, int) else span
             for lap in lane.laps for _ in range(lap.repeat) for span in lap.spans]
    seconds = np.cumsum([span.seconds * (pace if span.clocked else 1.0) for span in spans])
    edges = np.concatenate([[begin], np.minimum(begin + np.rint(1e9 * seconds).astype(np.int64), end)])
    slices: tuple[list[str], list[str]] = [], []
    for place, (span, start, edge) in enumerate(zip(spans, edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        # What is hidden ends before the next, which begins with it.
        last = min(start + round(1e9 * span.hidden), int(edges[place + 2])) if span.hidden else edge
        slices[bool(span.group and span.sms)].append(
            f'"ts":{start / 1e3:.3f},"dur":{(last - start) / 1e3:.3f},{_described(span, known)}')
    return slices


def _described(span: Span, known: dict[int, str]) -> str:
    """The part of a slice that tells what runs; spans that many steps share are told once."""
    if id(span) not in known:
        name, family, shape, launch = (json.dumps(str(text)) for text in
                                       (span.label, span.family, span.shape, span.launch))
        sms = f'"sms":{span.sms},' if span.sms else ""
        known[id(span)] = (
            f'"name":{name},"cat":{family},"args":{{"shape":{shape},"launch":{launch},"bound":"{span.bound}",'
            f'{sms}"waves":{span.waves:.4g},"idle_sms":{span.idle:.4g},"flops":{span.flops:.6g},"bytes":{span.bytes:.6g}}}}}'
        )
    return known[id(span)]
