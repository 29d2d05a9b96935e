"""The steps of a run as arrays, what each costs on each pipeline stage, and helpers that turn records into columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import define, field, fields

from ksim.flow.costs import ClockScaling, Costs
from ksim.flow.events import EngineBuilt, StepBlock
from ksim.flow.steps import KernelColumns, PricedBlock, StepColumns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: Integers in very long arrays.
Places = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


def floats(records: Sequence[Any], name: str) -> Floats:
    """Attribute *name* of each record; dots reach into it."""
    return np.fromiter(map(attrgetter(name), records), np.float64, len(records))


def ints(records: Sequence[Any], name: str) -> Ints:
    """Attribute *name* of each record; dots reach into it."""
    return np.fromiter(map(attrgetter(name), records), np.int64, len(records))


def each(records: Sequence[Any], value: Callable[[Any], int]) -> Ints:
    """*value* of each record."""
    return np.fromiter(map(value, records), np.int64, len(records))


def codes(keys: Iterable[Any]) -> tuple[Ints, list[Any]]:
    """Number the distinct keys in order of appearance: (the number of each key, the distinct keys)."""
    known: dict[Any, int] = {}
    numbers = [known.setdefault(key, len(known)) for key in keys]
    return np.array(numbers, dtype=np.int64), list(known)


def sums(groups: Ints | Places, amounts: Floats | Ints | Places | Bools, count: int) -> Floats:
    """Add up the amounts of each of *count* groups."""
    return np.bincount(groups, weights=amounts, minlength=count).astype(np.float64, copy=False)


def offsets(counts: Ints) -> Ints:
    """The places where groups of these sizes begin, stored one after another, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def shares(parts: Floats, wholes: Floats | Ints | float, otherwise: float = 0.0) -> Floats:
    """*parts* / *wholes*, element by element; *otherwise* where the whole is 0."""
    divisors = np.broadcast_to(np.asarray(wholes, np.float64), parts.shape)
    quotients = np.full(parts.shape, otherwise)
    np.divide(parts, divisors, out=quotients, where=divisors > 0)
    return quotients


def product(one: Floats, other: Floats | Ints) -> float:
    """The sum of *one* times *other*, pair by pair.  Unlike BLAS's, it is the same on any number of cores."""
    return float((one * other).sum())


def per_second(times: Floats, bins: int, end: float, begin: float = 0.0) -> Floats:
    """How many of *times*, in seconds, there are a second, in so many equal times from *begin* to *end*."""
    return np.histogram(times, bins, (begin, end))[0] * bins / (end - begin)


def ratio(part: float, whole: float) -> float | None:
    """*part* / *whole*, or None if the whole is 0."""
    return float(part / whole) if whole else None


T = TypeVar("T")


@define(eq=False, slots=False)
class StageSteps:
    """One row for each step on each pipeline stage: step by step, and stage by stage within a step."""

    step_blocks: Sequence[StepBlock]

    def __len__(self) -> int:
        return int(self._first[-1])

    @cached_property
    def _first(self) -> Ints:
        """The first row of each block of steps, and the end of the last."""
        return offsets(each(self.step_blocks, lambda block: len(block) * len(block.costs)))

    @cached_property
    def costs(self) -> Costs:
        """The costs of each stage step on one rank."""
        pieces = [np.stack([stage.costs.table for stage in block.costs], axis=2).reshape(-1, len(block) * len(
            block.costs)) for block in self.step_blocks if len(block.costs)]
        return Costs.joined([Costs(piece) for piece in pieces])

    @cached_property
    def scaling(self) -> ClockScaling:
        """The clock scaling of each stage step."""
        return ClockScaling(*(self._scaling(name.name) for name in fields(ClockScaling) if name.init))

    def _scaling(self, name: str) -> Floats:
        pieces = [np.stack([getattr(stage, name) for stage in block.scalings], axis=1).ravel()
                  for block in self.step_blocks if len(block.costs)]
        return np.concatenate([np.zeros(0), *pieces])

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of one rank, at the clock of each stage step."""
        seconds: Floats = self.costs.seconds_at(self.scaling)
        return seconds

    @cached_property
    def joules(self) -> Floats:
        """Joules of one rank beyond idle power, at the same clock."""
        joules: Floats = self.costs.joules_at(self.scaling)
        return joules

    @cached_property
    def blocks(self) -> list[tuple[PricedBlock, ...]]:
        return self._listed(lambda stage: stage.blocks)

    @cached_property
    def launch(self) -> list[str]:
        return self._listed(lambda stage: stage.launch)

    def _listed(self, of: Callable[[StepColumns], Sequence[T]]) -> list[T]:
        values: list[T] = []
        for block in self.step_blocks:
            if len(block.costs) == 1:
                values += of(block.costs[0])
            else:
                values += [value for stages in zip(*map(of, block.costs), strict=True) for value in stages]
        return values

    @cached_property
    def stage(self) -> Ints:
        """The pipeline stage of each row."""
        pieces = [np.tile(np.arange(len(block.costs)), len(block)) for block in self.step_blocks]
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def batch_kernels(self) -> tuple[Ints, Ints, list[KernelColumns]]:
        """The kernels that depend on the batch: the row of each, how often it runs there, and what it costs."""
        pieces: list[tuple[Any, Any, KernelColumns]] = [
            (self._rows(index, stage)[kernels.rows], np.full(len(kernels.rows), kernels.repeat), kernels.kernels)
            for index, block in enumerate(self.step_blocks) for stage, costs in enumerate(block.costs)
            for kernels in costs.batch_kernels]
        rows, repeats = (np.concatenate([np.zeros(0, np.int64), *(piece[column] for piece in pieces)])
                         for column in range(2))
        return rows, repeats, [kernels for _, _, kernels in pieces]

    def _rows(self, index: int, stage: int) -> Ints:
        """The rows of one stage of the block of steps at *index*."""
        return np.arange(self._first[index] + stage, self._first[index + 1], len(self.step_blocks[index].costs))

    def pieces(self, rows: Ints) -> Iterator[tuple[Ints, StepColumns, Ints]]:
        """Split *rows*, which are of one stage, by the `StepColumns` that they lie in.

        Yields which of *rows* lie there, the columns, and the rows within these.
        """
        places = np.searchsorted(self._first, rows, side="right") - 1
        for index in np.unique(places).tolist():
            which, stages = np.flatnonzero(places == index), self.step_blocks[index].costs
            steps, stage = np.divmod(rows[which] - self._first[index], len(stages))
            yield which, stages[int(stage[0])], steps


def _joined(name: str, kind: Any) -> Any:
    """A column of all steps: attribute *name* of their blocks; dots reach into it."""
    column = attrgetter(name)
    return cached_property(lambda steps: np.concatenate([np.zeros(0, kind), *map(column, steps.step_blocks)]))


def _floats(name: str) -> "cached_property[Floats]":
    joined: cached_property[Floats] = _joined(name, np.float64)
    return joined


def _ints(name: str) -> "cached_property[Ints]":
    joined: cached_property[Ints] = _joined(name, np.int64)
    return joined


@define(eq=False, slots=False)
class Steps:
    """The steps of a run, one row for each, engine by engine in the order of their index.

    Times are in seconds from the start of the run.  FLOP, bytes and dynamic joules are those of all GPUs of the
    engine.  `stage_steps` has what a step costs on each pipeline stage, and `stage_step_rows` the row here of each of
    those.  `before` says by when earlier steps of an engine had ended, where the log no longer has its first steps.
    """

    engines: Sequence[EngineBuilt]
    step_blocks: Sequence[StepBlock]
    before: Mapping[int, float] = field(factory=dict)

    time, scheduled, prepared = _floats("time"), _floats("scheduled"), _floats("prepared")
    start, end, taken = _floats("start"), _floats("end"), _floats("taken")
    waiting, running, blocks = _ints("waiting"), _ints("running"), _ints("blocks")
    #: New tokens, and sequences that sample one.
    tokens, samples = _ints("batches.tokens"), _ints("batches.samples")
    #: Sequences that compute tokens of prompts, or compute again what they lost.
    prefills = _ints("batches.prompts.counts")
    #: Of each of those, step by step: the id of the request, -1 where it is nobody's; new tokens; tokens in the cache.
    chunk_request = _ints("batches.prompts.request")
    chunk_tokens, chunk_context = _ints("batches.prompts.new"), _ints("batches.prompts.context")
    #: Drafted tokens that are verified.
    drafts = _ints("batches.drafts")
    _sequences = _ints("batches.sequences")

    def __attrs_post_init__(self) -> None:
        lengths, stages = each(self.step_blocks, len), each(self.step_blocks, lambda block: len(block.costs))
        self.engine = np.repeat(self.places(ints(self.step_blocks, "engine")), lengths)
        self.first: Ints = offsets(np.bincount(self.engine, minlength=len(self.engines)))
        self.index = np.arange(len(self)) - np.repeat(offsets(lengths)[:-1] - ints(self.step_blocks, "first"), lengths)
        self.stages: Ints = np.repeat(stages, lengths)
        self.stage_step_rows: Ints = np.repeat(np.arange(len(self)), self.stages)

    def __len__(self) -> int:
        return len(self.engine)

    def places(self, engines: Ints) -> Ints:
        """The places in `engines` of the engines with these numbers."""
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

    @cached_property
    def chunk_step(self) -> Ints:
        """The row of the step of each prompt chunk."""
        return np.repeat(np.arange(len(self)), self.prefills)

    @cached_property
    def drafted(self) -> int:
        """The most tokens that an engine drafts for a sequence and step; 0 where none speculates."""
        return max((built.drafted for built in self.engines), default=0)

    @cached_property
    def verifications(self) -> Ints:
        """How many sequences verify drafts, and how many of those accept 1, 2, ... of them or more:
        (steps, 1 + `drafted`)."""
        none = np.zeros((0, 1 + self.drafted), np.int64)
        if not self.drafted:
            return np.zeros((len(self), 1), np.int64)
        return np.concatenate([none, *(block.batches.verifications(self.drafted) for block in self.step_blocks)])

    @cached_property
    def encodes(self) -> bool:
        """Whether an engine has a vision encoder."""
        return any(built.encodes for built in self.engines)

    @cached_property
    def encoded(self) -> Ints:
        """How many images each step encodes, and how many tokens these become: (steps, 2)."""
        if not self.encodes:
            return np.zeros((len(self), 2), np.int64)
        return np.concatenate([np.zeros((0, 2), np.int64), *(block.batches.encoded for block in self.step_blocks)])

    @cached_property
    def decodes(self) -> Ints:
        """Sequences that decode: each computes the one token that it got last, and those drafted after it."""
        return self._sequences - self.prefills

    @cached_property
    def decode_context(self) -> Ints:
        """Tokens that the decoding sequences have in the cache together."""
        batches = [block.batches for block in self.step_blocks]
        whole = np.concatenate([np.zeros(0, np.int64), *(of.total + of.chunks.sums(of.chunks.context)
                                                         for of in batches)])
        return whole - sums(self.chunk_step, self.chunk_context, len(self)).astype(np.int64)

    @cached_property
    def kv_usage(self) -> Floats:
        """The share of the engine's KV blocks that are in use."""
        return self.blocks / np.maximum(self.per_engine("kv_blocks"), 1)

    @cached_property
    def ended(self) -> Floats:
        """The time when each step and all steps ahead of it on its engine have ended."""
        ended = np.zeros(len(self))
        for index in range(len(self.engines)):
            ended[self.rows(index)] = np.maximum.accumulate(self.end[self.rows(index)])
        return np.maximum(ended, self._before[self.engine])

    @cached_property
    def ahead(self) -> Floats:
        """The time when all steps ahead of each step on its engine have ended."""
        ahead = np.zeros(len(self))
        for index in range(len(self.engines)):
            rows = self.rows(index)
            ahead[rows] = np.concatenate([self._before[index: index + 1], self.ended[rows]])[:-1]
        return ahead

    @cached_property
    def rounds(self) -> Ints | None:
        """The number of each step's round: engines that share experts end their steps together.

        A step of any other engine has a round of its own.  None where no engines share experts.
        """
        group = ints(self.engines, "group")[self.engine]
        if (group < 0).all():
            return None
        keys = np.stack([group, np.where(group < 0, np.arange(len(self)), self.end)])
        return np.unique(keys, axis=1, return_inverse=True)[1].ravel()

    @cached_property
    def _before(self) -> Floats:
        return np.array([self.before.get(built.engine, 0.0) for built in self.engines])

    @cached_property
    def begun(self) -> Floats:
        """The time when each step has started and all steps ahead have ended; from then to `ended`, time is its own."""
        return np.minimum(np.maximum(self.start, self.ahead), self.ended)

    @cached_property
    def static(self) -> Floats:
        """The static joules of all GPUs of each step, from when it has `begun` to when it has `ended`."""
        return (self.ended - self.begun) * self.per_engine("static_watts") * self.gpus

    @cached_property
    def gpus(self) -> Ints:
        """The number of GPUs that run each step."""
        return each(self.engines, lambda built: built.ranks * built.stages)[self.engine]

    @cached_property
    def stage_ranks(self) -> Ints:
        """The number of GPUs that run each stage step."""
        return ints(self.engines, "ranks")[self.engine][self.stage_step_rows]

    @cached_property
    def stage_steps(self) -> StageSteps:
        """The costs of each step on each pipeline stage."""
        return StageSteps(self.step_blocks)

    @cached_property
    def gpu_seconds(self) -> Floats:
        """GPU seconds of each step, added up over its GPUs."""
        return self.added(self.stage_steps.seconds * self.stage_ranks)

    @cached_property
    def launch_waits(self) -> Floats:
        """Seconds of each step in which its GPUs waited for launches; 0 with several stages, where nobody knows."""
        alone = ints(self.engines, "stages")[self.engine] == 1
        return np.where(alone, np.maximum(0.0, self.end - self.start - self.stage_seconds), 0.0)

    @cached_property
    def stage_seconds(self) -> Floats:
        """Seconds of one rank of each stage, added up over the stages."""
        return self.added(self.stage_steps.seconds)

    @cached_property
    def flops(self) -> Floats:
        return self.added(self.stage_steps.costs.flops * self.stage_ranks)

    @cached_property
    def bytes(self) -> Floats:
        return self.added(self.stage_steps.costs.bytes * self.stage_ranks)

    @cached_property
    def joules(self) -> Floats:
        return self.added(self.stage_steps.joules * self.stage_ranks)

    def added(self, stage_steps: Floats) -> Floats:
        """The sum over the stages of each step."""
        return sums(self.stage_step_rows, stage_steps, len(self))

    @cached_property
    def dynamic_watts(self) -> Floats:
        """The power that each step adds to the static power of all its GPUs while it runs."""
        return shares(self.joules, self.end - self.start)

    @property
    def watts_above_limit(self) -> Floats:
        """The watts per GPU of the steps that draw more than their engine's limit, beyond rounding."""
        return self.watts[self.watts > 1.001 * self.per_engine("limit_watts")]

    @cached_property
    def watts(self) -> Floats:
        """The mean power of one GPU during each step."""
        return self.per_engine("static_watts") + self.dynamic_watts / self.gpus
