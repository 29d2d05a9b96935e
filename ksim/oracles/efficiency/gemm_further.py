"""More features of dense products, by name, for models of a GPU that was measured."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from attrs import frozen

from ksim.oracles.efficiency.physics import Array

__all__ = ["Products"]

#: What is said of tiles of so many rows and columns, and of tiles of so many rows.
OF_TILES, OF_ROWS = ("waves", "fill", "loss"), ("down", "full")


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
        found = dict(zip(named, (*self._of_tiles(*tiles), *self._of_rows(*heights)), strict=True))
        return [found[name] if name in found else self._plain(name) for name in names]

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
    found = [[name for name in names if name.partition("_")[0] == kind] for kind in kinds]
    return [name for each in found for name in each], [len(each) for each in found]
