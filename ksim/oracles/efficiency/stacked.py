"""Several efficiencies asked about a row each: a step has many small kernels of different families."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.models import Constant
from ksim.oracles.efficiency.physics import Array, Physics
from ksim.oracles.efficiency.pointwise import FEATURES, Terms, physics, side_by_side
from ksim.oracles.efficiency.pricing import Prices, blend
from ksim.oracles.efficiency.profile import Efficiency
from ksim.oracles.efficiency.region import Region
from ksim.oracles.efficiency.spread import Spread
from ksim.specs.hardware import Gpu

#: Choices of efficiencies that are kept are of so few, and no more than that.
FEW = 64


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
        """None where a model looks at its inputs, or where they do not lie in one space."""
        places = {each.place for each in efficiencies}
        if len(places) > 1 or not all(isinstance(each.model, Constant) for each in efficiencies):
            return None
        (place,) = places
        return cls(side_by_side([Terms(**each.constants) for each in efficiencies]),
                   np.exp([float(each.model(np.empty((1, 0)))[0]) for each in efficiencies]),
                   tuple(FEATURES.index(name) for name in place),
                   Region.stacked([each.region for each in efficiencies]),
                   Spread.stacked([each.spread for each in efficiencies]), np.array(further), others)

    def price(self, rows: NDArray[np.intp], shapes: Mapping[str, Array], gpu: Gpu) -> tuple[Physics, Prices]:
        """Price the kernels of *shapes*, each by the efficiency at one of *rows*."""
        several, others = len(rows), len(self.scales) - self.others
        if not self.others:
            return self._of_rows(rows)._price(shapes, gpu)
        worked, prices = self._of_rows(np.concatenate([rows, rows + others]))._price(
            {name: np.concatenate([column, column]) for name, column in shapes.items()}, gpu)
        return worked.first(several), blend(prices.of(slice(several)), prices.of(slice(several, None)))

    def _of_rows(self, rows: NDArray[np.intp]) -> "Stack":
        """The efficiencies at *rows*, one above the other; those of a few come again."""
        key = rows.tobytes()
        found = self._rows.get(key)
        if found is None:
            found = evolve(self, terms={name: term[rows] for name, term in self.terms.items()},
                           scales=self.scales[rows], region=self.region.of_rows(rows), spread=self.spread.of_rows(rows),
                           further=self.further[rows], others=0)
            if len(rows) <= FEW and len(self._rows) < FEW:
                self._rows[key] = found
        return found

    def _price(self, shapes: Mapping[str, Array], gpu: Gpu) -> tuple[Physics, Prices]:
        """Price the kernels of *shapes*, one by each of the efficiencies."""
        worked = physics(gpu, shapes, self.terms)
        place = worked.features[:, self.place]
        beyond = self.region.beyond(place) + self.further
        seconds = worked.seconds * self.scales
        low, high = self.spread.interval(place, beyond)
        return worked, Prices(seconds, seconds * np.exp(low), seconds * np.exp(high), beyond)
