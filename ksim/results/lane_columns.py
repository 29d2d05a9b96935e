"""What steps cost, and their clock scalings, as columns of (lanes,): a lane is one step on one pipeline stage."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from attrs import define, fields

from ksim.flow.costs import ClockScaling, Costs
from ksim.flow.kernels import KernelColumns
from ksim.flow.step_block import StepBlock
from ksim.flow.steps import PricedBlock, StepColumns
from ksim.results.arrays import Floats, Ints, each, offsets

T = TypeVar("T")


@define(eq=False, slots=False)
class LaneColumns:
    """Lanes step by step, those of a step stage by stage."""

    step_blocks: Sequence[StepBlock]

    def __len__(self) -> int:
        return int(self._first[-1])

    @cached_property
    def _first(self) -> Ints:
        """Where the lanes of each block of steps begin, and the last end."""
        return offsets(each(self.step_blocks, lambda block: len(block) * len(block.costs)))

    @cached_property
    def costs(self) -> Costs:
        """What each lane costs one rank."""
        pieces = [np.stack([stage.costs.table for stage in block.costs], axis=2).reshape(-1, len(block) * len(
            block.costs)) for block in self.step_blocks if len(block.costs)]
        return Costs.joined([Costs(piece) for piece in pieces])

    @cached_property
    def scaling(self) -> ClockScaling:
        """How the SM clock changed each lane."""
        return ClockScaling(*(self._scaling(name.name) for name in fields(ClockScaling) if name.init))

    def _scaling(self, name: str) -> Floats:
        pieces = [np.stack([getattr(stage, name) for stage in block.scalings], axis=1).ravel()
                  for block in self.step_blocks if len(block.costs)]
        return np.concatenate([np.zeros(0), *pieces])

    @cached_property
    def seconds(self) -> Floats:
        """How long one rank works on each lane."""
        seconds: Floats = self.costs.seconds_at(self.scaling)
        return seconds

    @cached_property
    def joules(self) -> Floats:
        """Joules of one rank beyond idle power."""
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
        """Which pipeline stage each is of."""
        pieces = [np.tile(np.arange(len(block.costs)), len(block)) for block in self.step_blocks]
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def batch_kernels(self) -> tuple[Ints, Ints, list[KernelColumns]]:
        """All kernels that depend on the batch: which lane each is of, how often it runs there, and what it costs."""
        pieces: list[tuple[Any, Any, KernelColumns]] = [
            (self._rows(place, stage)[kernels.rows], np.full(len(kernels.rows), kernels.repeat), kernels.kernels)
            for place, block in enumerate(self.step_blocks) for stage, costs in enumerate(block.costs)
            for kernels in costs.batch_kernels]
        rows, repeats = (np.concatenate([np.zeros(0, np.int64), *(piece[column] for piece in pieces)])
                         for column in range(2))
        return rows, repeats, [kernels for _, _, kernels in pieces]

    def _rows(self, place: int, stage: int) -> Ints:
        """The lanes of one stage of the block of steps at *place*."""
        return np.arange(self._first[place] + stage, self._first[place + 1], len(self.step_blocks[place].costs))

    def pieces(self, rows: Ints) -> Iterator[tuple[Ints, StepColumns, Ints]]:
        """Lanes of one stage by the columns that they are in: which of *rows*, these columns, and where therein."""
        places = np.searchsorted(self._first, rows, side="right") - 1
        for place in np.unique(places).tolist():
            which, stages = np.flatnonzero(places == place), self.step_blocks[place].costs
            steps, stage = np.divmod(rows[which] - self._first[place], len(stages))
            yield which, stages[int(stage[0])], steps
