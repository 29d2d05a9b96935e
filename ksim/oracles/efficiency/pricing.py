"""From a fitted efficiency to times: many kernels of one family at once."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import fields, frozen
from numpy.typing import NDArray

from ksim.oracles.efficiency.physics import Array, Physics
from ksim.oracles.efficiency.profile import Efficiency

#: What an input's name begins with where it is the logarithm of a column of the shape and not a feature.
LOG = "log2 "
#: A name and its place.
_Named = tuple[int, str]
#: How far beyond the data, as a share of its extent, what was measured there loses its weight.
FADING = 0.5


@frozen(eq=False)
class Prices:
    """Seconds of kernels, the ends of their 90 % intervals, and how far each lies `beyond` what was measured."""

    seconds: Array
    low: Array
    high: Array
    beyond: Array

    def of(self, which: NDArray[np.bool_] | slice) -> "Prices":
        return Prices(*(getattr(self, each.name)[which] for each in fields(Prices)))

    def with_those(self, which: NDArray[np.bool_], others: "Prices") -> "Prices":
        """These prices, but *others* for those in *which*."""
        columns = [getattr(self, each.name).copy() for each in fields(Prices)]
        for column, each in zip(columns, fields(Prices), strict=True):
            column[which] = getattr(others, each.name)
        return Prices(*columns)


def price(efficiency: Efficiency, physics: Physics, features: Sequence[str], shapes: Mapping[str, Array],
          further: float = 0.0) -> Prices:
    """Price the kernels that *physics* speaks of; all of them count as so much *further* beyond the data."""
    place = inputs_of(efficiency.place, physics, features, shapes)
    beyond = efficiency.region.beyond(place) + further
    seconds = physics.seconds * np.exp(efficiency.model(inputs_of(efficiency.inputs, physics, features, shapes)))
    low, high = efficiency.spread.interval(place, beyond)
    return Prices(seconds, seconds * np.exp(low), seconds * np.exp(high), beyond)


def inputs_of(names: Sequence[str], physics: Physics, features: Sequence[str], shapes: Mapping[str, Array]) -> Array:
    """The columns called *names*: of the features, worked out further, or, as in ``log2 m``, of the shapes."""
    if (places := places_of(tuple(names), tuple(features))) is not None:
        return physics.features.take(places, axis=1)
    known, at, logs, more = _sorted(tuple(names), tuple(features))
    table = np.empty((len(names), len(physics.seconds)))
    table[known] = physics.features.T[at]
    for place, name in logs:
        np.log2(shapes[name], out=table[place])
    for (place, _), column in zip(more, physics.further(tuple(name for _, name in more)), strict=True):
        table[place] = column
    return np.ascontiguousarray(table.T)


@lru_cache
def _sorted(names: tuple[str, ...],
            features: tuple[str, ...]) -> tuple[list[int], list[int], list[_Named], list[_Named]]:
    """Which of *names* are features, and where among them; then logarithms of columns, and what has to be worked out,
    each with its place."""
    known = [place for place, name in enumerate(names) if name in features]
    rest = [(place, name) for place, name in enumerate(names) if name not in features]
    logs = [(place, name.removeprefix(LOG)) for place, name in rest if name.startswith(LOG)]
    return (known, [features.index(names[place]) for place in known], logs,
            [each for each in rest if not each[1].startswith(LOG)])


@lru_cache
def places_of(names: tuple[str, ...], features: tuple[str, ...]) -> NDArray[np.intp] | None:
    """Where *names* are among *features*; None where one is not."""
    return np.array([features.index(name) for name in names], dtype=np.intp) if {*names} <= {*features} else None


def blend(inside: Prices, other: Prices) -> Prices:
    """Pass from one set of prices to another as kernels lie further beyond what the first was fitted to.

    Intervals reach as far as both do.  Prices within what was measured stay as they are, to the last bit.
    """
    outside = inside.beyond > 0
    seconds = np.where(outside, faded(inside.seconds, other.seconds, inside.beyond, np), inside.seconds)
    low = seconds * np.minimum(inside.low / inside.seconds, other.low / other.seconds)
    high = seconds * np.maximum(inside.high / inside.seconds, other.high / other.seconds)
    return Prices(seconds, np.where(outside, low, inside.low), np.where(outside, high, inside.high), inside.beyond)


def faded(inside: Any, other: Any, beyond: Any, m: Any) -> Any:
    """Seconds between those *inside* of what was measured and *other* ones, where *m* has the logarithms of either.

    At the border the first counts alone, half of the data's extent further the
    other has 63 % of the weight: constants that were measured carry further
    than those of other GPUs.
    """
    weight = m.exp(-beyond / FADING)
    return m.exp(weight * m.log(inside) + (1 - weight) * m.log(other))
