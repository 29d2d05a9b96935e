"""Several efficiencies asked about a row each: a step has many small kernels of different families."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.cost.efficiency.models import Constant
from ksim.cost.efficiency.physics import Array, Physics
from ksim.cost.efficiency.pointwise import FEATURES, Terms, physics, side_by_side
from ksim.cost.efficiency.pricing import Prices
from ksim.cost.efficiency.profile import Efficiency
from ksim.cost.efficiency.region import Region
from ksim.cost.efficiency.spread import Spread
from ksim.specs.hardware import Gpu


@frozen(eq=False)
class Stack:
    """Efficiencies of memory-bound families whose model is a constant, one above the other; `further` as in `price`."""

    terms: Mapping[str, Array]
    scales: Array
    place: tuple[int, ...]
    region: Region
    spread: Spread
    further: Array

    @classmethod
    def of(cls, efficiencies: Sequence[Efficiency], further: Sequence[float]) -> "Stack | None":
        """None where a model looks at its inputs, or where they do not lie in one space."""
        places = {each.place for each in efficiencies}
        if len(places) > 1 or not all(isinstance(each.model, Constant) for each in efficiencies):
            return None
        (place,) = places
        return cls(side_by_side([Terms(**each.constants) for each in efficiencies]),
                   np.exp([float(each.model(np.empty((1, 0)))[0]) for each in efficiencies]),
                   tuple(FEATURES.index(name) for name in place),
                   Region.stacked([each.region for each in efficiencies]),
                   Spread.stacked([each.spread for each in efficiencies]), np.array(further))

    def of_rows(self, rows: NDArray[np.intp]) -> "Stack":
        """The efficiencies at *rows*, one above the other."""
        if len(rows) == len(self.scales):
            return self
        return Stack({name: term[rows] for name, term in self.terms.items()}, self.scales[rows], self.place,
                     self.region.of_rows(rows), self.spread.of_rows(rows), self.further[rows])

    def price(self, shapes: Mapping[str, Array], gpu: Gpu) -> tuple[Physics, Prices]:
        """Price the kernels of *shapes*, one by each of the efficiencies."""
        worked = physics(gpu, shapes, self.terms)
        place = worked.features[:, self.place]
        beyond = self.region.beyond(place) + self.further
        seconds = worked.seconds * self.scales
        low, high = self.spread.interval(place, beyond)
        return worked, Prices(seconds, seconds * np.exp(low), seconds * np.exp(high), beyond)
