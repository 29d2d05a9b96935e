"""The steps of a run as arrays."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import define

from ksim.flow.events import EngineBuilt, Stepped
from ksim.flow.timeline import AT_BOOST, Pace, Timeline
from ksim.results.arrays import Floats, Ints, each, floats, ints, offsets, shares, sums


@define(eq=False, slots=False)
class Steps:
    """One row per step, engine by engine in the order of their index.

    Times are in seconds from the start of the run; `flops`, `bytes` and dynamic
    `joules` are those of all GPUs of the engine.  A *lane* is one step on one
    pipeline stage, true of all the stage's ranks: rows of steps with several
    stages have several lanes.
    """

    engines: Sequence[EngineBuilt]
    events: list[Stepped]

    def __attrs_post_init__(self) -> None:
        self.engine = self.places(self.events)
        self.first: Ints = offsets(np.bincount(self.engine, minlength=len(self.engines)))
        self.start, self.end = floats(self.events, "start"), floats(self.events, "end")
        self.time = floats(self.events, "time")
        self.lanes: list[Timeline] = [lane for step in self.events for lane in step.timelines]
        self.lane_step: Ints = np.repeat(np.arange(len(self)), each(self.events, lambda step: len(step.timelines)))

    def __len__(self) -> int:
        return len(self.events)

    def places(self, events: Sequence[Any]) -> Ints:
        """Where in `engines` the engine of each event stands."""
        return np.searchsorted(ints(self.engines, "engine"), ints(events, "engine"))

    def rows(self, engine: int) -> slice:
        """Which rows the engine at this place in `engines` has."""
        return slice(int(self.first[engine]), int(self.first[engine + 1]))

    def per_engine(self, name: str) -> Floats:
        """Attribute *name* of each step's engine."""
        return floats(self.engines, name)[self.engine]

    @cached_property
    def gpus(self) -> Ints:
        """How many GPUs each step runs on."""
        return each(self.engines, lambda built: built.ranks * built.stages)[self.engine]

    @cached_property
    def lane_ranks(self) -> Ints:
        """How many GPUs do what each lane says."""
        return ints(self.engines, "ranks")[self.engine][self.lane_step]

    @cached_property
    def lane_clocks(self) -> Floats:
        """The SM clock of each lane in Hz, nan where nothing is known of it."""
        return floats(self.lane_paces, "clock")

    @cached_property
    def lane_paces(self) -> list[Pace]:
        """How the GPUs of each lane did."""
        return [pace for step in self.events for pace in step.paces or [AT_BOOST] * len(step.timelines)]

    @cached_property
    def lane_seconds(self) -> Floats:
        return floats(self.lanes, "seconds") + (floats(self.lane_paces, "time") - 1.0) * floats(self.lanes, "clocked")

    @cached_property
    def scheduled(self) -> Floats:
        return floats(self.events, "scheduled")

    @cached_property
    def taken(self) -> Floats:
        return floats(self.events, "taken")

    @cached_property
    def tokens(self) -> Ints:
        return ints(self.events, "batch.tokens")

    @cached_property
    def decodes(self) -> Ints:
        """Sequences with one new token."""
        return each(self.events, lambda step: len(step.batch.contexts))

    @cached_property
    def prefills(self) -> Ints:
        """Sequences with several new tokens."""
        return each(self.events, lambda step: len(step.batch.chunks))

    @cached_property
    def blocks(self) -> Ints:
        return ints(self.events, "blocks")

    @cached_property
    def kv_usage(self) -> Floats:
        """The share of the engine's KV blocks in use."""
        return self.blocks / np.maximum(self.per_engine("kv_blocks"), 1)

    @cached_property
    def ended(self) -> Floats:
        """By when each step and those ahead of it on its engine have ended."""
        ended = np.zeros(len(self))
        for place in range(len(self.engines)):
            ended[self.rows(place)] = np.maximum.accumulate(self.end[self.rows(place)])
        return ended

    @cached_property
    def ahead(self) -> Floats:
        """By when those ahead of each step have."""
        ahead = np.zeros(len(self))
        for place in range(len(self.engines)):
            rows = self.rows(place)
            ahead[rows] = np.concatenate([np.zeros(1), self.ended[rows]])[:-1]
        return ahead

    @cached_property
    def begun(self) -> Floats:
        """When the time begins that is each step's alone; it lasts until it has `ended`."""
        return np.minimum(np.maximum(self.start, self.ahead), self.ended)

    @cached_property
    def gpu_seconds(self) -> Floats:
        """How long GPUs work on each step, added up over its GPUs."""
        return sums(self.lane_step, self.lane_seconds * self.lane_ranks, len(self))

    @cached_property
    def launch_waits(self) -> Floats:
        """Seconds of each step in which its GPUs waited for launches; where there are several stages, nobody knows."""
        alone = ints(self.engines, "stages")[self.engine] == 1
        return np.where(alone, np.maximum(0.0, self.end - self.start - self.stage_seconds), 0.0)

    @cached_property
    def stage_seconds(self) -> Floats:
        """How long one rank of each stage works on each step, added up over the stages."""
        return sums(self.lane_step, self.lane_seconds, len(self))

    @cached_property
    def flops(self) -> Floats:
        return sums(self.lane_step, floats(self.lanes, "flops") * self.lane_ranks, len(self))

    @cached_property
    def bytes(self) -> Floats:
        return sums(self.lane_step, floats(self.lanes, "bytes") * self.lane_ranks, len(self))

    @cached_property
    def joules(self) -> Floats:
        drawn = np.fromiter(map(Timeline.drawn, self.lanes, self.lane_paces), float, len(self.lanes))
        return sums(self.lane_step, drawn * self.lane_ranks, len(self))

    @cached_property
    def dynamic_watts(self) -> Floats:
        """What the step adds to the static power of all its GPUs while it runs."""
        return shares(self.joules, self.end - self.start)

    @cached_property
    def watts(self) -> Floats:
        """The mean power of one GPU during each step."""
        return self.per_engine("static_watts") + self.dynamic_watts / self.gpus
