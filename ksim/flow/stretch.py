"""Steps as columns: what `Stepped` says of one step, for many consecutive ones of an engine."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.flow.batches import Batches
from ksim.flow.events import Stepped
from ksim.flow.filled import Filled
from ksim.flow.timeline import AT_BOOST, Lap, Pace, Span, Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The numbers of a timeline, in the order of its fields.
_TOTALS = ("seconds", "joules", "flops", "bytes", "low", "high", "extrapolated", "clocked", "launch_seconds",
           "core_joules", "busy_joules", "clocked_joules")


@frozen(eq=False)
class Lanes:
    """The timelines of steps on one pipeline stage, as columns of (steps,) with the names and units of `Timeline`.

    `laps`, `fills` and `launch` have an entry for each step; steps of one plan have the very same laps.  `fills` may
    make its spans when asked: `filled` has them as columns, in the order of fills, those of equal steps together.
    All spans of the steps are those of the laps, as often as `Lap.repeat` says, and those of `filled`, `repeat` times.
    """

    laps: Sequence[Sequence[Lap]]
    fills: Sequence[tuple[Span, ...]]
    filled: Sequence[Filled]
    launch: Sequence[str]
    seconds: Floats
    joules: Floats
    flops: Floats
    bytes: Floats
    low: Floats
    high: Floats
    extrapolated: Floats
    clocked: Floats
    launch_seconds: Floats
    core_joules: Floats
    busy_joules: Floats
    clocked_joules: Floats

    def __len__(self) -> int:
        return len(self.laps)

    @classmethod
    def of(cls, timelines: Sequence[Timeline]) -> "Lanes":
        table = np.array(list(map(attrgetter(*_TOTALS), timelines)), dtype=np.float64)
        columns = table.reshape(-1, len(_TOTALS)).T.copy()
        return cls([timeline.laps for timeline in timelines], [timeline.fills for timeline in timelines],
                   _filled(timelines), [timeline.launch for timeline in timelines], *columns)

    def timeline(self, row: int) -> Timeline:
        """That of one step."""
        totals = {name: float(getattr(self, name)[row]) for name in _TOTALS}
        return Timeline(self.laps[row], self.fills[row], launch=self.launch[row], **totals)


def _filled(timelines: Sequence[Timeline]) -> list[Filled]:
    """Their fills as columns: those with equal places, names and repeats together."""
    found: dict[tuple[int, str, str, int], list[int]] = {}
    for row, timeline in enumerate(timelines):
        for place, (span, repeat) in enumerate(zip(timeline.fills, timeline.runs(), strict=True)):
            found.setdefault((place, span.label, span.family, repeat), []).append(row)
    return [Filled.of([timelines[row].fills[place] for row in rows], repeat, rows)
            for (place, _, _, repeat), rows in sorted(found.items(), key=lambda each: each[0])]


@frozen(eq=False)
class Paces:
    """The `Pace` of each step on one pipeline stage, as columns of (steps,)."""

    time: Floats
    energy: Floats
    power: Floats
    clock: Floats

    @classmethod
    def of(cls, paces: Sequence[Pace]) -> "Paces":
        table = np.array([(pace.time, pace.energy, pace.power, pace.clock) for pace in paces], dtype=np.float64)
        return cls(*table.reshape(-1, 4).T.copy())

    def pace(self, row: int) -> Pace:
        """That of one step."""
        return Pace(*(float(getattr(self, each.name)[row]) for each in fields(Paces)))


@frozen(eq=False)
class Stretch:
    """Steps `first`, `first` + 1, ... of an engine; seconds and counts are as in `Stepped`, in columns of (steps,).

    `lanes` and `paces` have one entry for each pipeline stage.
    """

    engine: int
    first: int
    time: Floats
    scheduled: Floats
    prepared: Floats
    start: Floats
    end: Floats
    taken: Floats
    batches: Batches
    waiting: Ints
    running: Ints
    blocks: Ints
    lanes: Sequence[Lanes]
    paces: Sequence[Paces]

    def __len__(self) -> int:
        return len(self.batches)

    @classmethod
    def of(cls, steps: Sequence[Stepped]) -> "Stretch":
        """Those of one engine, in the order of their index, none missing; there is at least one."""
        time, scheduled, prepared, start, end, taken = np.array(
            list(map(attrgetter("time", "scheduled", "prepared", "start", "end", "taken"), steps)), np.float64).T.copy()
        waiting, running, blocks = np.array(
            list(map(attrgetter("waiting", "running", "blocks"), steps)), np.int64).T.copy()
        stages = range(len(steps[0].timelines))
        return cls(
            steps[0].engine, steps[0].index, time, scheduled, prepared, start, end, taken,
            Batches.of([step.batch for step in steps]), waiting, running, blocks,
            [Lanes.of([step.timelines[stage] for step in steps]) for stage in stages],
            [Paces.of([step.paces[stage] if step.paces else AT_BOOST for step in steps]) for stage in stages])

    def steps(self) -> Iterator[Stepped]:
        """One by one."""
        for row, batch in enumerate(self.batches):
            yield Stepped(
                float(self.time[row]), self.engine, self.first + row, float(self.scheduled[row]),
                float(self.prepared[row]), float(self.start[row]), float(self.end[row]), float(self.taken[row]), batch,
                int(self.waiting[row]), int(self.running[row]), int(self.blocks[row]),
                tuple(lanes.timeline(row) for lanes in self.lanes), tuple(paces.pace(row) for paces in self.paces))
