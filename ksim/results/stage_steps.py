"""Stage steps, each one step on one pipeline stage, with their costs as columns."""

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
            (self._rows(place, stage)[kernels.rows], np.full(len(kernels.rows), kernels.repeat), kernels.kernels)
            for place, block in enumerate(self.step_blocks) for stage, costs in enumerate(block.costs)
            for kernels in costs.batch_kernels]
        rows, repeats = (np.concatenate([np.zeros(0, np.int64), *(piece[column] for piece in pieces)])
                         for column in range(2))
        return rows, repeats, [kernels for _, _, kernels in pieces]

    def _rows(self, place: int, stage: int) -> Ints:
        """The rows of one stage of the block of steps at *place*."""
        return np.arange(self._first[place] + stage, self._first[place + 1], len(self.step_blocks[place].costs))

    def pieces(self, rows: Ints) -> Iterator[tuple[Ints, StepColumns, Ints]]:
        """Split *rows*, which are of one stage, by the `StepColumns` that they lie in.

        Yields which of *rows* lie there, the columns, and the rows within these.
        """
        places = np.searchsorted(self._first, rows, side="right") - 1
        for place in np.unique(places).tolist():
            which, stages = np.flatnonzero(places == place), self.step_blocks[place].costs
            steps, stage = np.divmod(rows[which] - self._first[place], len(stages))
            yield which, stages[int(stage[0])], steps
