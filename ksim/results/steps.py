"""The steps of a run as arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from attrs import define, field

from ksim.flow.batches import Batches
from ksim.flow.events import EngineBuilt
from ksim.flow.step_block import StepBlock
from ksim.results.arrays import Floats, Ints, each, floats, ints, offsets, shares, sums
from ksim.results.lane_columns import LaneColumns


@define(eq=False, slots=False)
class Steps:
    """One row per step, engine by engine in the order of their index.

    Times are in seconds from the start of the run; `flops`, `bytes` and dynamic
    `joules` are those of all GPUs of the engine.  A *lane* is one step on one
    pipeline stage, true of all the stage's ranks: rows of steps with several
    stages have several lanes, one after another.  `before` says by when earlier steps
    of an engine had ended, where those of the log are not its first.
    """

    engines: Sequence[EngineBuilt]
    step_blocks: Sequence[StepBlock]
    before: Mapping[int, float] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        lengths, stages = each(self.step_blocks, len), each(self.step_blocks, lambda block: len(block.costs))
        self.engine = np.repeat(self.places(ints(self.step_blocks, "engine")), lengths)
        self.first: Ints = offsets(np.bincount(self.engine, minlength=len(self.engines)))
        self.index = np.arange(len(self)) - np.repeat(offsets(lengths)[:-1] - ints(self.step_blocks, "first"), lengths)
        self.stages: Ints = np.repeat(stages, lengths)
        self.lane_step: Ints = np.repeat(np.arange(len(self)), self.stages)
        self.start, self.end, self.time = self._floats("start"), self._floats("end"), self._floats("time")

    def __len__(self) -> int:
        return len(self.engine)

    def places(self, engines: Ints) -> Ints:
        """Where in `engines` the engines with these numbers stand."""
        return np.searchsorted(ints(self.engines, "engine"), engines)

    def rows(self, engine: int) -> slice:
        """Which rows the engine at this place in `engines` has."""
        return slice(int(self.first[engine]), int(self.first[engine + 1]))

    def row(self, engines: Ints, indices: Ints) -> Ints:
        """The rows of the steps with these indices, of the engines with these numbers."""
        first = self.first[:-1]
        begin = first - np.append(self.index, 0)[first] * (np.diff(self.first) > 0)
        return np.asarray(begin[self.places(engines)] + indices)

    def per_engine(self, name: str) -> Floats:
        """Attribute *name* of each step's engine."""
        return floats(self.engines, name)[self.engine]

    def _floats(self, name: str) -> Floats:
        return np.concatenate([np.zeros(0), *(getattr(block, name) for block in self.step_blocks)])

    def _ints(self, name: str) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(block, name) for block in self.step_blocks)])

    @cached_property
    def scheduled(self) -> Floats:
        return self._floats("scheduled")

    @cached_property
    def prepared(self) -> Floats:
        return self._floats("prepared")

    @cached_property
    def taken(self) -> Floats:
        return self._floats("taken")

    @cached_property
    def waiting(self) -> Ints:
        return self._ints("waiting")

    @cached_property
    def running(self) -> Ints:
        return self._ints("running")

    @cached_property
    def blocks(self) -> Ints:
        return self._ints("blocks")

    def _counts(self, of: Callable[[Batches], Ints]) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(of(block.batches) for block in self.step_blocks)])

    @cached_property
    def tokens(self) -> Ints:
        """New tokens."""
        return self._counts(lambda batches: batches.tokens)

    @cached_property
    def samples(self) -> Ints:
        return self._counts(lambda batches: batches.samples)

    @cached_property
    def decodes(self) -> Ints:
        """Sequences that decode: each computes the one token that it got last."""
        return self._counts(lambda batches: batches.sequences) - self.prefills

    @cached_property
    def decode_context(self) -> Ints:
        """What they have in the cache together."""
        whole = self._counts(lambda batches: batches.total + batches.chunks.sums(batches.chunks.context))
        return whole - sums(self.chunk_step, self.chunk_context, len(self)).astype(np.int64)

    @cached_property
    def prefills(self) -> Ints:
        """Sequences that compute tokens of prompts, or compute again what they lost."""
        return self._counts(lambda batches: batches.prompts.counts)

    @cached_property
    def chunk_step(self) -> Ints:
        """The row of the step of each of these, step by step: (chunks,)."""
        return np.repeat(np.arange(len(self)), self.prefills)

    @cached_property
    def chunk_request(self) -> Ints:
        """The id of the request of each of them; -1 where it is nobody's."""
        return self._counts(lambda batches: batches.prompts.request)

    @cached_property
    def chunk_tokens(self) -> Ints:
        """The new tokens of each of them, one or more."""
        return self._counts(lambda batches: batches.prompts.new)

    @cached_property
    def chunk_context(self) -> Ints:
        """What each of them has in the cache."""
        return self._counts(lambda batches: batches.prompts.context)

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
        return np.maximum(ended, self._before[self.engine])

    @cached_property
    def ahead(self) -> Floats:
        """By when those ahead of each step have."""
        ahead = np.zeros(len(self))
        for place in range(len(self.engines)):
            rows = self.rows(place)
            ahead[rows] = np.concatenate([self._before[place: place + 1], self.ended[rows]])[:-1]
        return ahead

    @cached_property
    def rounds(self) -> Ints | None:
        """The number of each step's round: engines that share experts end their steps together.

        A step of any other engine has a round of its own.  None where no engines share experts.
        """
        convoy = ints(self.engines, "convoy")[self.engine]
        if (convoy < 0).all():
            return None
        keys = np.stack([convoy, np.where(convoy < 0, np.arange(len(self)), self.end)])
        return np.unique(keys, axis=1, return_inverse=True)[1].ravel()

    @cached_property
    def _before(self) -> Floats:
        return np.array([self.before.get(built.engine, 0.0) for built in self.engines])

    @cached_property
    def begun(self) -> Floats:
        """When the time begins that is each step's alone; it lasts until it has `ended`."""
        return np.minimum(np.maximum(self.start, self.ahead), self.ended)

    @cached_property
    def static(self) -> Floats:
        """The static joules of all GPUs of each step, from the end of the one ahead of it or its own start."""
        return (self.ended - self.begun) * self.per_engine("static_watts") * self.gpus

    @cached_property
    def gpus(self) -> Ints:
        """How many GPUs each step runs on."""
        return each(self.engines, lambda built: built.ranks * built.stages)[self.engine]

    @cached_property
    def lane_ranks(self) -> Ints:
        """How many GPUs do what each lane says."""
        return ints(self.engines, "ranks")[self.engine][self.lane_step]

    @cached_property
    def lanes(self) -> LaneColumns:
        """What the timelines and the paces say."""
        return LaneColumns(self.step_blocks)

    @cached_property
    def lane_seconds(self) -> Floats:
        return self.lanes.seconds

    @cached_property
    def gpu_seconds(self) -> Floats:
        """How long GPUs work on each step, added up over its GPUs."""
        return self.added(self.lane_seconds * self.lane_ranks)

    @cached_property
    def launch_waits(self) -> Floats:
        """Seconds of each step in which its GPUs waited for launches; where there are several stages, nobody knows."""
        alone = ints(self.engines, "stages")[self.engine] == 1
        return np.where(alone, np.maximum(0.0, self.end - self.start - self.stage_seconds), 0.0)

    @cached_property
    def stage_seconds(self) -> Floats:
        """How long one rank of each stage works on each step, added up over the stages."""
        return self.added(self.lane_seconds)

    @cached_property
    def flops(self) -> Floats:
        return self.added(self.lanes.costs.flops * self.lane_ranks)

    @cached_property
    def bytes(self) -> Floats:
        return self.added(self.lanes.costs.bytes * self.lane_ranks)

    @cached_property
    def joules(self) -> Floats:
        return self.added(self.lanes.joules * self.lane_ranks)

    def added(self, lanes: Floats) -> Floats:
        """What the lanes of each step add up to."""
        return sums(self.lane_step, lanes, len(self))

    @cached_property
    def dynamic_watts(self) -> Floats:
        """What the step adds to the static power of all its GPUs while it runs."""
        return shares(self.joules, self.end - self.start)

    @cached_property
    def watts(self) -> Floats:
        """The mean power of one GPU during each step."""
        return self.per_engine("static_watts") + self.dynamic_watts / self.gpus
