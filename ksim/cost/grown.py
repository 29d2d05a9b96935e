"""Parts of steps whose kernels grow evenly with their tokens: those of many numbers of them are priced as columns."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ksim.compute.graph import BatchDependent, Collective, Op, is_batch_dependent
from ksim.compute.kernels.sweep import KernelSweep
from ksim.cost.affine import COLUMNAR, AffineBlocks, AffineKernel, AffineSweep, affine_sweeps
from ksim.cost.launches import Launches
from ksim.cost.plan import Hole, Part
from ksim.cost.sheet import ADDED, Sheet, added
from ksim.cost.spans import Pricer
from ksim.flow.laps import Laps
from ksim.flow.timeline import Lap, Span, Totals

__all__ = ["Grown"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@frozen
class _Launch:
    """One launch, or equal ones in laps that run so often: of the op at a `place`, which may be called otherwise."""

    label: str
    place: int
    runs: int


@frozen(eq=False)
class Grown:
    """Prices parts by how many tokens they go over.

    `ops` launch each something else, whatever it is called; `laps` have their launches in order, and numbers for
    `holes`.
    """

    pricer: Pricer
    ops: Sequence[Op | AffineKernel]
    laps: Sequence[tuple[Sequence[_Launch | int], int]]
    holes: tuple[Hole, ...]

    @classmethod
    def of(cls, growing: AffineBlocks | None, pricer: Pricer) -> "Grown | None":
        """None where kernels do not grow, or ranks differ, or kernels are of a kind that has no columns."""
        blocks = growing.blocks if growing else ()
        if growing is None or not all(_plain(op) for ops, _ in blocks for op in ops):
            return None
        own: dict[Any, Op | AffineKernel] = {}
        runs: dict[tuple[str, BatchDependent], int] = {}
        laps = [([_placed(op, repeat, own, runs) for op in ops], repeat) for ops, repeat in blocks]
        return cls(pricer, list(own.values()), laps, tuple((*hole, count) for hole, count in runs.items()))

    def asked(self, tokens: Sequence[int]) -> list[KernelSweep]:
        """What there is to ask of each number of *tokens*."""
        column = np.array(tokens, dtype=np.int64)
        return [group.at(column) for group in self._alike] if len(column) else []

    def parts(self, tokens: Sequence[int], sheets: Sequence[Sheet]) -> list[Part]:
        """Those over each number of *tokens*, of which the *sheets* answer what is `asked`."""
        sent = {place: self._sent(op, tokens) for place, op in self._messages.items()}
        totals = self._totals(self._added(sheets, sent, len(tokens)))
        return [Part(Laps(partial(self._laps, sheets, sent, row)), self.holes, each, self._counts)
                for row, each in enumerate(totals)]

    def _sent(self, op: AffineKernel, tokens: Sequence[int]) -> list[Span]:
        launches: list[Any] = [(op.label, op.at(each).kernel) for each in tokens]
        return self.pricer.spans(launches)

    def _added(self, sheets: Sequence[Sheet], sent: Mapping[int, Sequence[Span]], sizes: int) -> Floats:
        """What each op adds to totals of so many *sizes*, and nothing at last: (ADDED, ops + 1, sizes)."""
        table = np.zeros((ADDED, len(self.ops) + 1, sizes))
        for group, sheet in zip(self._alike, sheets, strict=True):
            table[:, group.places] = sheet.added().reshape(ADDED, -1, sizes)
        for place, span in self._fixed.items():
            table[:, place] = np.array(added(span))[:, None]
        for place, spans in sent.items():
            table[:, place] = np.array([added(span) for span in spans]).T
        return table

    def _totals(self, table: Floats) -> Iterator[Totals]:
        """Totals of each size, added up in the order of launches."""
        places, runs, families, members = self._order
        table = table[:, places]
        table *= runs
        sums = np.add.accumulate(table[:-2], axis=1)[:, -1].T.tolist()
        reach = np.add.accumulate(table[-2:, members], axis=2)[:, :, -1].transpose(2, 0, 1).tolist()
        for row, (below, above) in zip(sums, reach, strict=True):
            yield Totals(*(*row, *(dict(zip(families, side, strict=False)) for side in (below, above))))

    def _laps(self, sheets: Sequence[Sheet], sent: Mapping[int, Sequence[Span]], size: int) -> Iterator[Lap]:
        """Those of the number of tokens in place *size*."""
        rows = {place: (sheet, number * (len(sheet.kernels) // len(sheet.kernels.families)) + size)
                for group, sheet in zip(self._alike, sheets, strict=True)
                for number, place in enumerate(group.places.tolist())}
        whole = {**self._fixed, **{place: spans[size] for place, spans in sent.items()}}
        for launches, repeat in self.laps:
            yield Lap(tuple(
                each if isinstance(each, int) else evolve(whole[each.place], label=each.label) if each.place in whole
                else rows[each.place][0].span(each.label, rows[each.place][1]) for each in launches), repeat)

    @cached_property
    def _alike(self) -> list[AffineSweep]:
        return affine_sweeps([(place, op) for place, op in enumerate(self.ops)
                      if isinstance(op, AffineKernel) and op.kind is not Collective])

    @cached_property
    def _messages(self) -> dict[int, AffineKernel]:
        return {place: op for place, op in enumerate(self.ops)
                if isinstance(op, AffineKernel) and op.kind is Collective}

    @cached_property
    def _fixed(self) -> dict[int, Span]:
        """What is the same for any number of tokens."""
        launches: dict[int, Any] = {place: (op.label, op.kernel) for place, op in enumerate(self.ops)
                                    if isinstance(op, Op)}
        return dict(zip(launches, self.pricer.spans(list(launches.values())), strict=True))

    @cached_property
    def _order(self) -> tuple[Ints, Floats, list[str], Ints]:
        """The places of launches and at last of nothing, how often each runs, families, and the launches of each as a
        row, filled up with the last."""
        launches = [each for launches, _ in self.laps for each in launches if isinstance(each, _Launch)]
        members: dict[str, list[int]] = {}
        for number, launch in enumerate(launches):
            members.setdefault(_one(self.ops[launch.place]).kernel.family, []).append(number)  # type: ignore[union-attr]
        most = max(map(len, members.values()), default=1)
        rows = [[*each, *[len(launches)] * (most - len(each))] for each in members.values()]
        return (np.array([*(launch.place for launch in launches), len(self.ops)]),
                np.array([[launch.runs] for launch in launches] + [[0.0]]), list(members),
                np.array(rows, dtype=np.intp).reshape(-1, most))

    @cached_property
    def _counts(self) -> Launches:
        """They are as many for any number of tokens."""
        return Launches.of([Lap(tuple(
            each if isinstance(each, int) else Span(each.label, "", 0.0, shape=_one(self.ops[each.place]).kernel)
            for each in launches), repeat) for launches, repeat in self.laps])


def _plain(op: Op | AffineKernel) -> bool:
    """Whether columns can say what *op* launches, or it waits for its batch."""
    return op.mean is None if isinstance(op, Op) else issubclass(op.kind, (*COLUMNAR, Collective))


def _one(op: Op | AffineKernel) -> Op:
    """That over one token."""
    return op if isinstance(op, Op) else op.at(1)


def _placed(op: Op | AffineKernel, repeat: int, own: dict[Any, Op | AffineKernel],
            runs: dict[tuple[str, BatchDependent], int]) -> _Launch | int:
    """Where *op* stands among its *own*, which it joins if it is new, or among holes, whose *runs* are counted."""
    if isinstance(op, Op) and is_batch_dependent(op.kernel):
        hole = (op.label, op.kernel)
        runs[hole] = runs.get(hole, 0) + repeat
        return list(runs).index(hole)
    key = op.kernel if isinstance(op, Op) else (op.kind, op.values)
    own.setdefault(key, op)
    return _Launch(op.label, list(own).index(key), repeat)
