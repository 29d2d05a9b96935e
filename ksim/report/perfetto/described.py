"""What a trace says of kernels, as columns."""

from json.encoder import encode_basestring_ascii as quoted

import numpy as np
from attrs import define, field

from ksim.flow.kernels import KernelColumns, KernelKind
from ksim.flow.steps import PricedBlock
from ksim.results.arrays import Floats, Ints, each, offsets
from ksim.results.lane_columns import LaneColumns


@define(eq=False)
class Described:
    """The kernels of lanes, unfolded; most of them are the same in all lanes with the same blocks.

    They are columns of (5, kernels): seconds, whether compute limits them, hidden seconds, whether they share the GPU
    with products, and which of `texts` tells what runs.
    """

    lanes: LaneColumns
    texts: list[str] = field(factory=list)
    _plans: dict[int, Floats] = field(factory=dict)

    def kernels(self, rows: Ints) -> tuple[Ints, Floats]:
        """How many kernels each of the lanes at *rows*, which are of one stage, has on one rank, and all of them."""
        tables = [self._plan(self.lanes.blocks[row]) for row in rows.tolist()]
        sizes, table = each(tables, lambda one: one.shape[1]), np.concatenate(tables, axis=1)
        (own, first), depending = self._batch_kernels(rows), np.flatnonzero(table[-1] < 0)
        lane, number = np.repeat(np.arange(len(rows)), sizes)[depending], -1 - table[-1, depending].astype(np.int64)
        table[:, depending] = own[:, first[lane] + number]
        return sizes, table

    def _plan(self, blocks: tuple[PricedBlock, ...]) -> Floats:
        """The kernels of *blocks*; of one that depends on the batch, only -1 - its number as its text."""
        if id(blocks) not in self._plans:
            rows = [np.tile(self._block(block), block.repeat) for block in blocks if block.places]
            self._plans[id(blocks)] = np.concatenate([np.zeros((5, 0)), *rows], axis=1)
        return self._plans[id(blocks)]

    def _block(self, block: PricedBlock) -> Floats:
        places = np.array(block.places)
        table, known = np.zeros((5, len(places))), places >= 0
        table[-1] = places
        table[:, known] = self._columns(block.kernels, places[known])
        return table

    def _batch_kernels(self, rows: Ints) -> tuple[Floats, Ints]:
        """The kernels of the batches of the lanes at *rows*, lane by lane in order of their numbers, and where those of
        each begin."""
        columns, lane = [np.zeros((5, 0))], [np.zeros(0, np.int64)]
        for which, costs, steps in self.lanes.pieces(rows):
            for batch in costs.batch_kernels:
                place = np.searchsorted(batch.rows, steps)
                there = np.append(batch.rows, -1)[place] == steps
                lane.append(which[there])
                columns.append(self._columns(batch.kernels, place[there]))
        whose = np.concatenate(lane)
        order = np.argsort(whose, kind="stable")
        return np.concatenate(columns, axis=1)[:, order], offsets(np.bincount(whose, minlength=len(rows)))

    def _columns(self, kernels: KernelColumns, places: Ints) -> Floats:
        """Some of *kernels*."""
        some, first = kernels.taken(places), len(self.texts)
        kinds = [kernels.kinds[kind] for kind in some.kind.tolist()]
        numbers = zip(some.waves.tolist(), some.idle.tolist(), some.costs.flops.tolist(), some.costs.bytes.tolist(),
                      strict=True)
        self.texts += [_text(kind, shape, *rest) for kind, shape, rest in zip(kinds, some.shapes, numbers, strict=True)]
        computes = [kind.bound == "compute" for kind in kinds]
        return np.stack([some.costs.seconds, computes, some.hidden, [bool(kind.group and kind.sms) for kind in kinds],
                         first + np.arange(len(places))])


def _text(kind: KernelKind, shape: str, waves: float, idle: float, flops: float, moved: float) -> str:
    """The part of a slice that tells what runs."""
    share = f'"sms":{kind.sms},' if kind.sms else ""
    return (f'"name":{quoted(kind.label)},"cat":{quoted(kind.family)},"args":{{"shape":{quoted(shape)},'
            f'"launch":{quoted(kind.launch)},"bound":"{kind.bound}",{share}"waves":{waves:.4g},"idle_sms":{idle:.4g},'
            f'"flops":{flops:.6g},"bytes":{moved:.6g}}}}}')
