"""Memory-bound kernels from data sheets: norms, activations, rotary embeddings, cache writes, sampling, copies.

``seconds = start + ramp x log2(rows, up to one a SM) + (row^p + traffic^p)^(1/p)``.  `row` is how long a thread block
takes for its row alone; `traffic` is bytes over the bandwidth of the L2 cache, or of device memory once what the kernel
touches no longer fits the cache, and what a wave of thread blocks takes to issue.  One block works off one row, as in
vLLM's kernels (csrc/layernorm_kernels.cu, activation_kernels.cu, pos_encoding_kernels.cu, cache_kernels.cu).

`Terms` are fitted family by family.  Latencies are kept in clocks and bandwidths as shares, so that other GPUs can be
priced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import asdict, astuple, evolve, field, fields, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.families import Family, Shapes, attributes
from ksim.oracles.efficiency.models import Array, Constant, Efficiency, Physics, Prices, Region, Spread, blend
from ksim.specs.hardware import Gpu

__all__ = ["FAMILY", "FEATURES", "LAUNCHES", "Stack", "Terms", "physics", "side_by_side", "uncached"]

FEATURES = ("start_share", "log_row_over_traffic", "log_waves", "misses", "log_row_bytes", "log_traffic_over_l2")
LAUNCHES = ("a block a row",)

#: Threads that an SM holds (CUDA programming guide, compute capabilities 8.0, 9.0 and 10.0).
SM_THREADS = 2048.0
#: How suddenly the L2 cache stops serving: at twice the size that it serves 0.4 % are left.
CLIFF = 8.0
#: PyTorch's reductions (ATen/native/cuda/Reduce.cuh): threads of a block, and values a thread takes before and after
#: the row is split over blocks.
REDUCE_THREADS, REDUCE_SPLIT, REDUCE_LEAST = 512.0, 256.0, 16.0
#: At most so many choices of efficiencies are kept, each for at most so many kernels.
FEW = 64


@frozen
class Terms:
    """The constants of one family: seconds, clocks, and shares of the data sheet.

    `start` s and `ramp` s for each doubling of rows; clocks: `fixed` of a block, `kib` for each KiB of its row (up to
    `widest` bytes), `passes` for every pass after the first over `pass_bytes` of the row (from `pass_rows` rows on),
    `wave` for a wave of blocks and `missing` for one more where device memory is needed.  A row has a thread for every
    `thread_bytes`, at most `threads`.  `l2` is in bytes per clock and SM, `memory` a share of the bandwidth; the cache
    serves up to `capacity` of its size of the `footprint`, the share of the bytes moved that are different ones.
    `split` is 1 for PyTorch's reductions, which share wide rows among blocks and then take `fixed` more.
    """

    start: float
    ramp: float = 0.0
    fixed: float = 0.0
    kib: float = 0.0
    passes: float = 0.0
    wave: float = 0.0
    missing: float = 0.0
    l2: float = 64.0
    memory: float = 0.9
    capacity: float = 0.85
    sharpness: float = 3.0
    pass_bytes: float = np.inf
    pass_rows: float = 0.0
    widest: float = np.inf
    thread_bytes: float = 8.0
    threads: float = 512.0
    footprint: float = 1.0
    split: float = 0.0


def physics(gpu: Gpu, shapes: Mapping[str, Array], t: Mapping[str, Any]) -> Physics:
    """Price kernels by their columns `rows`, `read_bytes` and `write_bytes`.

    *t* has the `Terms` by name: a number each for all rows, or arrays (`side_by_side`).
    """
    rows, moved = shapes["rows"], shapes["read_bytes"] + shapes["write_bytes"]
    width = moved / rows
    misses = 1.0 / (1.0 + (t["capacity"] * gpu.l2 / (t["footprint"] * moved)) ** CLIFF)
    parts = _parts(gpu, rows, width, t)
    waves = rows * parts * np.minimum(t["threads"], width / t["thread_bytes"]) / (gpu.sms * SM_THREADS)
    split = parts > 1.0
    passes = np.where(rows >= t["pass_rows"], np.maximum(np.ceil(width / t["pass_bytes"]), 1.0) - 1.0, 0.0)
    kib = np.minimum(width, t["widest"]) / 1024.0 / parts
    clocks = t["fixed"] * np.where(t["split"] > 0.0, split, 1.0) + t["kib"] * kib + t["passes"] * passes
    row = np.maximum(clocks, 1.0) / gpu.clock
    cached, memory = moved / (t["l2"] * gpu.sms * gpu.clock), moved / (t["memory"] * gpu.bandwidth)
    traffic = cached + (memory - cached) * misses + waves * (t["wave"] + t["missing"] * misses) / gpu.clock
    start = t["start"] + t["ramp"] * np.log2(np.minimum(rows, gpu.sms))
    seconds = start + (row ** t["sharpness"] + traffic ** t["sharpness"]) ** (1.0 / t["sharpness"])
    features = np.column_stack([
        start / seconds, np.log(row / traffic), np.log(waves), misses, np.log(width / 1024.0), np.log(moved / gpu.l2),
    ])
    peak = moved / gpu.bandwidth
    return Physics(seconds, np.zeros_like(peak), peak, waves, np.ceil(waves) - waves,
                   np.zeros(len(rows), dtype=np.intp), features)


def uncached(gpu: Gpu, shapes: Mapping[str, Array]) -> Array:
    """Seconds that device memory takes for what kernels cannot find in the L2 cache: tables, and what exceeds it.

    A kernel may write where it has read, so what it touches is at least the larger of both.
    """
    touched = np.maximum(shapes["read_bytes"], shapes["write_bytes"])
    seconds: Array = np.maximum(np.maximum(shapes["cold_bytes"], touched - gpu.l2), 0.0) / gpu.bandwidth
    return seconds


def side_by_side(terms: Sequence[Terms]) -> Mapping[str, Array]:
    """The terms of several families, one a row."""
    names = [field.name for field in fields(Terms)]
    return dict(zip(names, np.array([astuple(family) for family in terms]).T, strict=True))


def _parts(gpu: Gpu, rows: Array, width: Array, t: Mapping[str, Any]) -> Array:
    """Into how many blocks PyTorch splits a row: as many as there is room for, each thread with enough to do."""
    values = np.ceil(width / t["thread_bytes"] / REDUCE_THREADS)
    room = np.ceil(gpu.sms * SM_THREADS / REDUCE_THREADS / rows)
    parts = np.maximum(np.minimum(room, np.ceil(values / REDUCE_LEAST)), np.ceil(values / REDUCE_SPLIT))
    return np.where((t["split"] > 0.0) & (values >= REDUCE_SPLIT), parts, 1.0)


@frozen(eq=False)
class Stack:
    """Efficiencies of memory-bound families whose model is a constant, one above the other; `further` as in `price`.

    The last `others` of them are what the first ones pass over to beyond what those were fitted to.
    """

    terms: Mapping[str, Array]
    scales: Array
    place: tuple[int, ...]
    region: Region
    spread: Spread
    further: Array
    others: int = 0
    _rows: dict[bytes, "Stack"] = field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, efficiencies: Sequence[Efficiency], further: Sequence[float], others: int = 0) -> "Stack | None":
        """Stack *efficiencies*; None where a model looks at its inputs, or where they do not lie in one space."""
        places = {fitted.place for fitted in efficiencies}
        if len(places) > 1 or not all(isinstance(fitted.model, Constant) for fitted in efficiencies):
            return None
        (place,) = places
        return cls(side_by_side([Terms(**fitted.constants) for fitted in efficiencies]),
                   np.exp([float(fitted.model(np.empty((1, 0)))[0]) for fitted in efficiencies]),
                   tuple(FEATURES.index(name) for name in place),
                   Region.stacked([fitted.region for fitted in efficiencies]),
                   Spread.stacked([fitted.spread for fitted in efficiencies]), np.array(further), others)

    def price(self, rows: NDArray[np.intp], shapes: Mapping[str, Array], gpu: Gpu) -> tuple[Physics, Prices]:
        """Price the kernels of *shapes*, each by the efficiency at one of *rows*."""
        kernels, others = len(rows), len(self.scales) - self.others
        if not self.others:
            return self._of_rows(rows)._price(shapes, gpu)
        worked, prices = self._of_rows(np.concatenate([rows, rows + others]))._price(
            {name: np.concatenate([column, column]) for name, column in shapes.items()}, gpu)
        return _first(worked, kernels), blend(prices.of(slice(kernels)), prices.of(slice(kernels, None)))

    def _of_rows(self, rows: NDArray[np.intp]) -> "Stack":
        """The efficiencies at *rows*, one above the other; those of a few come again."""
        key = rows.tobytes()
        stack = self._rows.get(key)
        if stack is None:
            stack = evolve(self, terms={name: term[rows] for name, term in self.terms.items()},
                           scales=self.scales[rows], region=self.region.of_rows(rows), spread=self.spread.of_rows(rows),
                           further=self.further[rows], others=0)
            if len(rows) <= FEW and len(self._rows) < FEW:
                self._rows[key] = stack
        return stack

    def _price(self, shapes: Mapping[str, Array], gpu: Gpu) -> tuple[Physics, Prices]:
        """Price the kernels of *shapes*, one by each of the efficiencies."""
        worked = physics(gpu, shapes, self.terms)
        place = worked.features[:, self.place]
        beyond = self.region.beyond(place) + self.further
        seconds = worked.seconds * self.scales
        low, high = self.spread.interval(place, beyond)
        return worked, Prices(seconds, seconds * np.exp(low), seconds * np.exp(high), beyond)


def _first(worked: Physics, rows: int) -> Physics:
    """The physics of the first so many kernels, without the features that are worked out by name."""
    return Physics(*(getattr(worked, column.name)[:rows] for column in fields(Physics)[:-1]))


#: The columns of a kernel that only moves memory.
_COLUMNS = ("rows", "read_bytes", "write_bytes", "cold_bytes")
#: A kernel that no profile knows is priced like one that moves memory as plainly: one thread block a row.
_PLAIN = "silu_mul"


def _sweep(kernel: Any, gpu: Gpu) -> Shapes:
    return {name: np.broadcast_to(np.asarray(getattr(kernel, name), dtype=np.float64), np.shape(kernel.read_bytes))
            for name in _COLUMNS}


FAMILY = Family(lambda gpu, shapes, constants: physics(gpu, shapes, asdict(Terms(**constants))), FEATURES, LAUNCHES,
                lambda kernels, gpu: attributes(kernels, _COLUMNS), lambda kernel: (kernel.family, _PLAIN),
                sweep=_sweep)
