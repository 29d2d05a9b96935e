"""How libraries cut a dense product into thread blocks: cuBLAS' menu of tiles, and vLLM's own choice for 8 bits."""

from functools import cache

import numpy as np

from ksim.oracles.efficiency.physics import Array
from ksim.specs.hardware import Gpu

__all__ = ["LAUNCHES", "dispatched_launch", "menu_launches"]

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
