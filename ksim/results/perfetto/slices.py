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


def _name(kind: str, process: int, thread: int, name: str) -> str:
    place = f'"ph":"M","pid":{process},"tid":{thread}'
    index = process if kind == "process" else thread
    return (f'{{"name":"{kind}_name",{place},"args":{{"name":{json.dumps(name)}}}}},\n'
            f'{{"name":"{kind}_sort_index",{place},"args":{{"sort_index":{index}}}}}')


def step_slices(lanes: Lanes, stride: int) -> Iterator[str]:
    """Every *stride*-th step, on each of its stages."""
    steps = lanes.history.steps
    for row in np.flatnonzero(steps.lane_step % stride == 0).tolist():
        number = steps.lane_step[row]
        step = steps.events[number]
        batch, process = step.batch, engine_process(steps.engine[number])
        kind = "mixed" if batch.contexts and batch.chunks else "prefill" if batch.chunks else "decode"
        begin, end = int(lanes.begin[row]), int(lanes.end[row])
        yield (
            f'{{"name":"{kind}","ph":"X","pid":{process},"tid":{1 + lanes.stage[row]},"ts":{begin / 1e3:.3f},'
            f'"dur":{(end - begin) / 1e3:.3f},"args":{{"step":{step.index},"tokens":{batch.tokens},'
            f'"decodes":{len(batch.contexts)},"prefills":{len(batch.chunks)},"samples":{batch.samples},'
            f'"waiting":{step.waiting},"running":{step.running},"kv_blocks":{step.blocks}}}}}'
        )


def kernel_slices(lanes: Lanes, rows: Ints) -> Iterator[str]:
    """The kernels of the lanes at *rows*, on every rank of their stage."""
    steps, known = lanes.history.steps, dict[int, str]()
    for row in rows.tolist():
        place = int(steps.engine[steps.lane_step[row]])
        ranks, lane = lanes.history.engines[place].ranks, steps.lanes[row]
        slices = _unfolded(lane, int(lanes.begin[row]), int(lanes.end[row]), known)
        for rank in range(lanes.stage[row] * ranks, (lanes.stage[row] + 1) * ranks):
            head = f'{{"ph":"X","pid":{engine_process(place)},"tid":{_FIRST_RANK + rank},'
            if slices:
                yield head + (",\n" + head).join(slices)


def _unfolded(lane: Timeline, begin: int, end: int, known: dict[int, str]) -> list[str]:
    """The kernels of one rank in one step, each without what the ranks differ in."""
    spans = list(lane)
    seconds = np.fromiter((span.seconds for span in spans), np.float64, len(spans))
    edges = np.minimum(begin + np.rint(1e9 * np.cumsum(seconds)).astype(np.int64), end)
    starts = np.concatenate([[begin], edges[:-1]])
    times = zip(spans, (starts / 1e3).tolist(), ((edges - starts) / 1e3).tolist(), strict=True)
    shared = {id(span) for lap in lane.laps for span in lap.spans}
    texts = {id(span): _described(span, known if id(span) in shared else {}) for span in spans}
    return [f'"ts":{start:.3f},"dur":{duration:.3f},{texts[id(span)]}' for span, start, duration in times]


def _described(span: Span, known: dict[int, str]) -> str:
    """The part of a slice that tells what runs; spans that live in laps are told once."""
    if id(span) not in known:
        known[id(span)] = (
            f'"name":{json.dumps(span.label)},"cat":{json.dumps(span.family)},"args":{{"shape":{json.dumps(span.shape)},'
            f'"bound":"{span.bound}","waves":{span.waves:.4g},"idle_sms":{span.idle:.4g},"flops":{span.flops:.6g},'
            f'"bytes":{span.bytes:.6g}}}}}'
        )
    return known[id(span)]
