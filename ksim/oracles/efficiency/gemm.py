"""Dense matrix products ``out[m, n] = x[m, k] @ w[k, n]``, priced by their thread blocks from the data sheet.

``seconds = start + max(compute, memory, power) (+ reduction)``, the maximum of compute and memory a smooth one:

* compute: each block walks over k in steps of 128 bytes; a step takes what the tensor cores or the latency of the
  loads allow.  The busiest SM has ``ceil(blocks / SMs)`` blocks, some of them at once.
* memory: weights come from the L2 as far as `footprint` fits in it, otherwise from device memory.
* power: with all SMs busy a board may reach its limit, and the clock falls.

cuBLAS chooses a tile and into how many parts k is split; here the fastest of a menu.  vLLM's CUTLASS kernels for 8-bit
activations have one tile per number of rows and no split (vLLM 0.24, csrc/quantization/w8a8/cutlass: *_dispatch.cuh).
The `GemmConstants` are shared by all GPUs.  Those of latency come in two kinds: for kernels that load with cp.async
(Ampere, Ada, cuBLAS on consumer Blackwell) and with the tensor memory accelerator (Hopper, Blackwell).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from attrs import frozen

from ksim.oracles import peak
from ksim.oracles.efficiency.families import Family, Shapes, product_names
from ksim.oracles.efficiency.models import Array, Physics
from ksim.specs.hardware import Gpu

__all__ = ["FAMILY", "LAUNCHES", "Products", "dispatched_launch", "menu_launches", "CONSTANTS", "FEATURES",
           "GemmConstants", "physics", "quantization"]


#: Rows and columns of a block's tile, and of how many tiles side by side a cluster is made, along rows and columns.
Tile = tuple[int, int, int, int]
#: Height of a tile that fits the rows.
FIT = 0
#: Ampere's menu: powers of two.
AMPERE: tuple[Tile, ...] = tuple((rows, columns, 1, 1) for rows, columns in (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (16, 64), (64, 32)))
#: Hopper's wgmma is flexible in one dimension.
HOPPER: tuple[Tile, ...] = (
    *((rows, 128, 1, 1) for rows in (FIT, 64, 128, 160, 192, 256)), (FIT, 256, 1, 1),
    (64, 64, 1, 1), (128, 64, 1, 1), (64, 256, 1, 1), (128, 256, 1, 1), (256, 128, 1, 2))
#: Blackwell's tcgen05 has 128 rows of the weights per SM, is flexible in the other dimension, and has pairs of SMs.
BLACKWELL: tuple[Tile, ...] = (
    *((rows, 128, 1, pair) for rows in (64, 128, 192, 256) for pair in (1, 2)), (FIT, 128, 1, 1), (128, 64, 1, 1))
MENUS = {"hopper": HOPPER, "blackwell": BLACKWELL}
MOST_PARTS = 16.0
#: Elements of k below which it is not split further.
LEAST_PART = 256.0

LAUNCHES: tuple[str, ...] = ("dispatched", *sorted({
    f"{rows or 'fit'}x{columns}" for menu in (AMPERE, HOPPER, BLACKWELL) for rows, columns, _, _ in menu}))

#: What is said of tiles of so many rows and columns, and of tiles of so many rows.
OF_TILES, OF_ROWS = ("waves", "fill", "loss"), ("down", "full")

Launches = tuple[Array, Array, Array, Array, Array]


def menu_launches(gpu: Gpu, m: Array, n: Array, k: Array) -> Launches:
    """Tile (rows, columns), blocks across and down, parts of k, index into `LAUNCHES`.

    A row a launch, a column a shape.  Each tile comes twice: whole, and with k split into as many parts, a power of
    two, as the SMs have room for.
    """
    menu, names = _tiles(gpu.architecture)
    pair = menu[2:]
    # Tiles of no given height fit the rows: as many equal ones as there must be, in steps of 8.
    fitting = 8 * np.ceil(m / (8 * np.ceil(m / np.minimum(256, 32768 / menu[1]))))
    tile = np.stack([np.where(menu[0] > 0, menu[0], fitting), np.broadcast_to(menu[1], fitting.shape)])
    down = np.ceil(m / (tile[0] * pair[0])) * pair[0]
    across = np.ceil(n / (tile[1] * pair[1])) * pair[1]
    half = len(names) // 2
    parts = np.ones(down.shape)
    room = np.minimum(gpu.sms / (down[half:] * across[half:]), np.minimum(k / LEAST_PART, MOST_PARTS))
    parts[half:] = 2.0 ** np.floor(np.log2(np.maximum(room, 1)))
    return tile, across, down, parts, names


@cache
def _tiles(architecture: str) -> tuple[Array, Array]:
    menu = MENUS.get(architecture, AMPERE) * 2
    return (np.array(menu, float).T[..., None],
            np.array([LAUNCHES.index(f"{rows or 'fit'}x{columns}") for rows, columns, *_ in menu], float))


def dispatched_launch(gpu: Gpu, m: Array, n: Array) -> Launches:
    """The one launch that vLLM chooses, in the form of `menu_launches`."""
    shape = np.stack(_dispatch(gpu.architecture, m, n))[:, None]
    tile, pair = shape[:2], shape[2:]
    down = np.ceil(m / (tile[0] * pair[0])) * pair[0]
    across = np.ceil(n / (tile[1] * pair[1])) * pair[1]
    return tile, across, down, np.ones(down.shape), np.zeros(1)


def _dispatch(architecture: str, m: Array, n: Array) -> tuple[Array, ...]:
    """Rows, columns, and pairs along rows and columns, of the tile that vLLM's CUTLASS kernels for 8 bits have."""
    one, up_to = np.ones_like(m), [m <= 16, m <= 32, m <= 64, m <= 128, m <= 256]
    if architecture == "hopper":
        height = np.select([(m <= 16) | (m <= 64) & (n <= 1280), m <= 128], [16.0, 64.0], 128.0)
        return height, np.where(m <= 64, 64.0, 128.0), np.where(m <= 64, 1.0, 2.0), one
    if architecture == "blackwell":
        height = np.select([m <= 16, m <= 256], [32.0, 64.0], 128.0)
        return height, 128 * one, np.where(m <= 64, 1.0, 2.0), np.select([m <= 64, m <= 256], [4.0, 1.0], 2.0)
    if architecture == "blackwell-consumer":
        height = np.select([m <= 16, m <= 32, m <= 256], [16.0, 32.0, 64.0], 128.0)
        return height, np.where(m <= 256, 64.0, 128.0), one, one
    middle, wide = (n > 8192) & (n <= 16384), n > 16384
    height = np.select(up_to, [16 * one, 32 * one, 64 * one, np.where(n > 8192, 128.0, 64.0), np.where(
        n > 4096, 128.0, 64.0)], np.where((n > 4096) & (n <= 8192), 256.0, 128.0))
    width = np.select(up_to, [np.where(n > 8192, 128.0, 64.0), *(2 * [np.where(middle, 128.0, 64.0)]),
                              np.where(wide, 64.0, 128.0), 128 * one], 128.0)
    return height, width, one, one


@frozen(eq=False)
class Products:
    """Columns of products on a GPU of so many `sms`; `seconds` are of all, `quantizing` of that for the activations."""

    sms: int
    m: Array
    n: Array
    k: Array
    seconds: Array
    quantizing: Array

    def features(self, names: tuple[str, ...]) -> list[Array]:
        """The features called *names*, a column each; raises KeyError for an unknown one.

        Of tiles of ``AxB`` rows and columns: logarithms of their waves (`waves_`) and of the work of filled-up ones
        over the product's own (`loss_`), and how full the last wave is (`fill_`).  Of tiles of A rows: the logarithm of
        their number (`down_`) and how full they are (`full_`).  Then logarithms, but for `vector`, which is 1 for one
        row.
        """
        named, tiles, heights = _layout(names)
        tiled = dict(zip(named, (*self._of_tiles(*tiles), *self._of_rows(*heights)), strict=True))
        return [tiled[name] if name in tiled else self._plain(name) for name in names]

    def _of_tiles(self, rows: Array, columns: Array, filled: int, lost: int) -> list[Array]:
        """Waves of the first tiles, then shares of those from *filled* on, and losses of those from *lost* on."""
        if not rows.size:
            return []
        waves = np.ceil(self.m / rows) * np.ceil(self.n / columns) / self.sms
        whole = np.ceil(waves)
        done = whole[lost:] * (rows[lost:] * columns[lost:] * self.sms)
        return [*np.log2(waves[:filled]), *(waves[filled:lost] / whole[filled:lost]),
                *np.minimum(np.log2(done / (self.m * self.n)), 6.0)]

    def _of_rows(self, heights: Array, full: int) -> list[Array]:
        """Numbers of the first of the heights, then how full those from *full* on are."""
        if not heights.size:
            return []
        down = np.ceil(self.m / heights)
        return [*np.log2(down[:full]), *(self.m / (heights[full:] * down[full:]))]

    def _plain(self, name: str) -> Array:
        m, n, k = self.m, self.n, self.k
        plain: dict[str, Callable[[], Array]] = {
            "twos": lambda: _twos(k), "vector": lambda: (m == 1) * 1.0,
            "few": lambda: np.log2(np.minimum(m, 16.0)), "weights": lambda: np.log2(n * k),
            "inputs": lambda: np.log2(m * k), "microseconds": lambda: np.log2(self.seconds * 1e6),
            "quantizing": lambda: np.log2(self.quantizing / self.seconds + 0.01)}
        return plain[name]()


def _twos(k: Array) -> Array:
    """Logarithms of powers of two in *k*."""
    whole = k.astype(np.int64)
    return np.minimum(np.log2((whole & -whole).astype(np.float64)), 14.0)


@lru_cache
def _layout(names: tuple[str, ...]) -> tuple[list[str], tuple[Array, Array, int, int], tuple[Array, int]]:
    """The features among *names* that describe tiles, kind by kind, and the tiles that they name.

    First come those of `OF_TILES`, with rows, columns, and the numbers at which the second and the third kind begin;
    then those of `OF_ROWS`, with heights, and the number at which the second kind begins.
    """
    tiled, counts = _kinds(names, OF_TILES)
    high, (down, _) = _kinds(names, OF_ROWS)
    sizes = np.array([[float(size) for size in name.partition("_")[2].split("x")] for name in tiled]).reshape(-1, 2)
    heights = np.array([[float(name.partition("_")[2])] for name in high]).reshape(-1, 1)
    return [*tiled, *high], (sizes[:, :1], sizes[:, 1:], counts[0], counts[0] + counts[1]), (heights, down)


def _kinds(names: Sequence[str], kinds: Sequence[str]) -> tuple[list[str], list[int]]:
    """The *names* that begin with one of *kinds*, kind by kind, and the number of each kind."""
    by_kind = [[name for name in names if name.partition("_")[0] == kind] for kind in kinds]
    return [name for group in by_kind for name in group], [len(group) for group in by_kind]


#: Data-centre architectures, whose libraries load tiles with the tensor memory accelerator.
BULK = frozenset({"hopper", "blackwell"})
#: The accelerator of consumer Blackwell is used by CUTLASS 3, not by its cuBLAS, which runs Ampere's kernels.
BULK_DISPATCHED = BULK | {"blackwell-consumer"}
#: Bytes of the contracted dimension that a block takes in one step.
STEP = 128.0
#: Clock at which the constants of latency hold; they go as its inverse square root, for half is on-chip and half not.
CLOCK = 2.0e9
#: GDDR6 keeps its error correction inline: a sixteenth of capacity (see the data sheets' `memory`) and of bandwidth.
INLINE_ECC = {"ada": 15 / 16}
#: Rows of shapes handled at once, so that an array of launches by rows stays in the processor's cache.
CHUNK = 8192

#: Logarithms (base 2) of counts and ratios, and shares.  `loss_*` is what that tile's edges and last wave add; `steady`
#: is the reference without blocks, tiles and waves over the one with them.
FEATURES: tuple[str, ...] = (
    "m", "n", "k", "per", "waves", "rows", "columns", "parts", "ridge", "size", "latency", "compute",
    "steady", "intensity", "loss_256x128", "loss_128x256", "loss_128x128", "loss_64x128", "loss_128x64", "loss_64x64",
    "idle", "resident")
LOSS_ROWS = np.array([256.0, 128, 128, 64, 128, 64])[:, None]
LOSS_COLUMNS = np.array([128.0, 256, 128, 128, 64, 64])[:, None]


@frozen
class GemmConstants:
    """Seconds at `CLOCK`, or shares of a peak; `_async` for cp.async kernels, `_bulk` for those with bulk loads."""

    start_async: float      # seconds that even the smallest kernel takes
    start_bulk: float
    step_async: float       # seconds of a step, however small the tile
    step_bulk: float
    turn_async: float       # seconds between one round of blocks and the next
    turn_bulk: float
    tensor_async: float     # share of the tensor cores' peak
    tensor_bulk: float
    memory: float           # share of the device memory's bandwidth
    stream: float           # bytes a clock from the L2 to an SM, for weights that stay there
    joule: float            # J/FLOP above idle of mma.sync kernels
    reduce_async: float = 0.0   # seconds to add up the parts of a split (cuBLAS)
    reduce_bulk: float = 0.0
    panel: float = 1.0      # share of the L2 that keeps a panel read again and again (CUTLASS; cuBLAS walks in blocks)
    row: float = 0.0        # clocks of quantising a row of activations (8 bits)
    chunk: float = 0.0      # and of 2,048 elements of it


#: Least absolute error of log time over the public tables of nine GPUs (core rows; fp8 with quantisation); see the
#: recipe for what is held fixed.
CONSTANTS = {
    "bf16": GemmConstants(
        start_async=5.5e-6, start_bulk=2.5e-6, step_async=125e-9, step_bulk=98e-9, turn_async=8.25e-6,
        turn_bulk=0.91e-6, tensor_async=0.93, tensor_bulk=0.85, memory=0.85, stream=22.3, joule=1.12e-12,
        reduce_async=0.12e-6, reduce_bulk=2.0e-6),
    "fp8": GemmConstants(
        start_async=6.75e-6, start_bulk=3.54e-6, step_async=61e-9, step_bulk=98e-9, turn_async=19.3e-6,
        turn_bulk=0.55e-6, tensor_async=0.93, tensor_bulk=0.786, memory=0.82, stream=22.0, joule=0.661e-12,
        panel=1.57, row=765, chunk=1000),
}

RESIDENCY = 6.0             # exponent: how sharply weights stop to fit in the L2
SMOOTH = 3.0                # exponent of the smooth maximum of compute and memory
QUANTIZATION_START = 2.0e-6
QUANTIZATION_MEMORY = 0.63  # share of the bandwidth, once the rows do not fit in the L2


def physics(gpu: Gpu, shapes: Mapping[str, Array], constants: GemmConstants | None = None) -> Physics:
    """`shapes` has columns m, n, k (elements), weight_bytes and activation_bytes (per element, with their scales), peak
    (FLOP/s of the activations' format on `gpu`) and footprint (bytes of weights used before these are used again;
    infinite in serving).

    Rows whose activations have one byte are priced as vLLM's CUTLASS kernels, without the quantisation of activations;
    formats with scales of blocks (1.03 bytes, 0.56 bytes) and 16 bits as a library's.  `constants` are for all rows.
    `shapes` may have a column `quantized`: 1 where the kernel that quantises activations was timed along.
    """
    columns = [np.asarray(shapes[name], float) for name in (
        "m", "n", "k", "weight_bytes", "activation_bytes", "peak", "footprint")]
    out, total = np.empty((6 + len(FEATURES), len(columns[0]))), len(columns[0])
    dispatched = columns[4] == 1
    for kind in (False, True):
        own = constants or CONSTANTS["fp8" if kind else "bf16"]
        chosen = np.flatnonzero(dispatched == kind)
        if len(chosen) == total <= CHUNK:
            _price(gpu, columns, own, kind, out)
            break
        for at in range(0, len(chosen), CHUNK):
            part = chosen[at:at + CHUNK]
            chunk = np.empty((len(out), len(part)))
            _price(gpu, [column[part] for column in columns], own, kind, chunk)
            out[:, part] = chunk
    quantizing = np.zeros(len(columns[0]))
    if "quantized" in shapes:
        quantizing = shapes["quantized"] * quantization(gpu, columns[0], columns[2], constants)
        out[0] += quantizing
    return Physics(seconds=out[0], compute=out[1], memory=out[2], waves=out[3], idle=out[4],
                   launch=out[5].astype(np.intp), features=out[6:].T,
                   further=Products(gpu.sms, columns[0], columns[1], columns[2], out[0], quantizing).features)


def quantization(gpu: Gpu, m: Array, k: Array, constants: GemmConstants | None = None) -> Array:
    """Seconds in which vLLM quantises m x k activations per token to 8 bits before a product, from the public tables.

    A row is a fixed cost and one for each 2,048 elements; SMs take rows two at a time.
    """
    own = constants or CONSTANTS["fp8"]
    issue = (own.row + own.chunk * np.ceil(k / 2048)) * np.maximum(m / gpu.sms, 0.5) / gpu.clock
    moved = 3.0 * m * k
    memory = moved / (1 + (1.2 * gpu.l2 / moved) ** RESIDENCY) / (gpu.bandwidth * QUANTIZATION_MEMORY)
    return np.asarray(QUANTIZATION_START * (CLOCK / gpu.clock) ** 0.5 + (issue**4 + memory**4) ** 0.25)


def _price(gpu: Gpu, columns: list[Array], own: GemmConstants, dispatched: bool, out: Array) -> None:
    """Fill rows of `Physics`: seconds, compute, memory, waves, idle, launch, then the features."""
    m, n, k, weight, activation, peak, footprint = columns
    start, step, turn, reduce = _latencies(gpu, own, dispatched)
    tile, across, down, parts, names = dispatched_launch(gpu, m, n) if dispatched else menu_launches(gpu, m, n, k)
    area, waves = tile[0] * tile[1], across * down * parts / gpu.sms
    per, bulk = np.ceil(waves), gpu.architecture in BULK
    # Small tiles leave room for several blocks on an SM, whose latencies overlap.
    rounds = np.ceil(per / ((area <= 8192) + 1.0 if bulk else np.minimum(np.maximum(16384 // area, 1), 4)))
    element = np.maximum(weight, activation)
    steps = np.ceil(k * element / (STEP * parts))
    tensor = own.tensor_bulk if bulk else own.tensor_async
    arithmetic = area * (2 * STEP * gpu.sms / (element * peak * tensor))
    latency = rounds * steps * step
    compute = np.maximum(latency, per * steps * arithmetic) + turn * (rounds - 1)
    bandwidth, stream = _bandwidths(gpu, own)
    resident = 1 / (1 + (footprint / gpu.l2) ** RESIDENCY)
    moved = weight * n * k * ((1 - resident) / bandwidth + resident / stream) + (
        activation * m * k + 2 * m * n) / bandwidth
    memory = moved + (parts - 1) * (8 / stream * m * n)
    if dispatched:
        memory = memory + _again(gpu, m, n, k * element, across, down, own) / bandwidth
    adding = (parts > 1) * reduce
    best = (np.maximum(compute, memory) + adding + 1e-3 * compute).argmin(axis=0)
    places = best * len(m) + np.arange(len(m))
    compute, memory, per, waves, latency, parts, adding = (
        array.ravel()[places] for array in (compute, memory, per, waves, latency, parts, adding))
    ideal = 2 * m * n * k / (peak * tensor)
    steady = start + (ideal**SMOOTH + moved**SMOOTH) ** (1 / SMOOTH)
    seconds = (compute**SMOOTH + memory**SMOOTH) ** (1 / SMOOTH) + adding
    seconds = start + (seconds if bulk else np.maximum(
        seconds, own.joule * 2 * m * n * k / (gpu.power.limit - gpu.power.idle)))
    idle, which = 1 - waves / per, (best, np.arange(len(m)))
    ratios = m, n, k, per, waves, tile[0][which], tile[1][which], parts, compute / memory, seconds / start, (
        latency / seconds), compute / seconds, steady / seconds, ideal / moved
    answers = seconds, compute, memory, waves, idle, names[best], *ratios
    for row, column in zip(out, answers, strict=False):
        row[:] = column
    _features(gpu, m, n, out[len(answers) - len(ratios):])
    out[-2], out[-1] = idle, resident


def _latencies(gpu: Gpu, own: GemmConstants, dispatched: bool) -> tuple[float, float, float, float]:
    """Seconds to start, of a step, of a turn and to add up parts."""
    slow = float((CLOCK / gpu.clock) ** 0.5)
    if gpu.architecture in (BULK_DISPATCHED if dispatched else BULK):
        return slow * own.start_bulk, slow * own.step_bulk, slow * own.turn_bulk, slow * own.reduce_bulk
    return slow * own.start_async, slow * own.step_async, slow * own.turn_async, slow * own.reduce_async


def _bandwidths(gpu: Gpu, own: GemmConstants) -> tuple[float, float]:
    """Bytes a second that come from device memory, and from the L2 cache."""
    return gpu.bandwidth * own.memory * INLINE_ECC.get(gpu.architecture, 1.0), gpu.sms * own.stream * gpu.clock


def _features(gpu: Gpu, m: Array, n: Array, rows: Array) -> None:
    """Make logarithms of the ratios that *rows* begin with, which losses follow."""
    logs = rows[:-2]
    np.divide(np.ceil(np.ceil(m / LOSS_ROWS) * np.ceil(n / LOSS_COLUMNS) / gpu.sms) * (
        LOSS_ROWS * LOSS_COLUMNS * gpu.sms), m * n, out=logs[14:])
    np.log2(logs, out=logs)
    for row, most in ((logs[8], 4.0), (logs[13], 6.0)):
        np.minimum(np.maximum(row, -most, out=row), most, out=row)
    np.minimum(logs[14:], 6, out=logs[14:])


def _again(gpu: Gpu, m: Array, n: Array, depth: Array, across: Array, down: Array, own: GemmConstants) -> Array:
    """Bytes read again: CUTLASS walks along the shorter side, whose panel each column of blocks reads anew."""
    panel = np.minimum(m, n) * depth
    short, long = np.where(m <= n, (down, across), (across, down))
    passes = np.minimum(np.maximum(long * short / gpu.sms, 1), long)
    return np.asarray(panel / (1 + (own.panel * gpu.l2 / panel) ** 3) * (passes - 1))


#: The columns of a dense product.
_COLUMNS = ("m", "n", "k", "weight_bytes", "activation_bytes", "peak", "footprint")


def _columns(kernels: Sequence[Any], gpu: Gpu) -> Shapes:
    table = np.array([(kernel.m, kernel.n, kernel.k, kernel.weights.bytes, kernel.activations.bytes,
                       peak(gpu, kernel.activations), np.inf) for kernel in kernels], dtype=np.float64)
    return dict(zip(_COLUMNS, table.T, strict=True))


def _sweep(kernel: Any, gpu: Gpu) -> Shapes:
    table = np.empty((len(_COLUMNS), len(kernel.m)))
    table[0], table[1], table[2] = kernel.m, kernel.n, kernel.k
    table[3:] = [[kernel.weights.bytes], [kernel.activations.bytes], [peak(gpu, kernel.activations)], [np.inf]]
    return dict(zip(_COLUMNS, table, strict=True))


FAMILY = Family(lambda gpu, shapes, constants: physics(gpu, shapes, GemmConstants(**constants)), FEATURES, LAUNCHES,
                _columns, lambda kernel: product_names("gemm", kernel), sweep=_sweep)
