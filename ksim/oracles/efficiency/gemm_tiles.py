"""How libraries cut a dense product into tiles: cuBLAS' menu, vLLM's own choice for 8 bits, and features of tiles."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np
from attrs import frozen

from ksim.oracles.efficiency.physics import Array
from ksim.specs.hardware import Gpu

__all__ = ["LAUNCHES", "Products", "dispatched_launch", "menu_launches"]

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
    """As `menu_launches`, with the one launch that vLLM takes."""
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
        """Those called *names*, a column each; raises KeyError for what has none of them.

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
    """Those of *names* that speak of tiles, kind by kind; the tiles of the first, and where the second and the third
    kind begin; the heights of the others, and where their second kind begins."""
    tiled, counts = _kinds(names, OF_TILES)
    high, (down, _) = _kinds(names, OF_ROWS)
    sizes = np.array([[float(size) for size in name.partition("_")[2].split("x")] for name in tiled]).reshape(-1, 2)
    heights = np.array([[float(name.partition("_")[2])] for name in high]).reshape(-1, 1)
    return [*tiled, *high], (sizes[:, :1], sizes[:, 1:], counts[0], counts[0] + counts[1]), (heights, down)


def _kinds(names: Sequence[str], kinds: Sequence[str]) -> tuple[list[str], list[int]]:
    """Those of *names* that begin with one of *kinds*, kind by kind, and how many there are of each."""
    by_kind = [[name for name in names if name.partition("_")[0] == kind] for kind in kinds]
    return [name for group in by_kind for name in group], [len(group) for group in by_kind]
