"""TODO"""

import numpy as np
from numpy.typing import NDArray

from ksim.calibration.measurements import Floats
from ksim.calibration.power.boards import Readings
from ksim.calibration.power.prediction import joules_of
from ksim.specs.power import Power

#: Lengths of launches fall into so many classes for a power of ten: how long is measured follows from them.
CLASSES = 2
#: No class is told apart that has fewer rows to learn from.
FEWEST = 20


def drawn(readings: Readings, power: Power) -> Floats:
    """Mean watts in a launch that takes as long as it was measured to take."""
    dynamic = readings.counts @ joules_of(power) / readings.seconds
    return np.minimum(power.limit, power.idle + dynamic)


def observed(readings: Readings, power: Power) -> Floats:
    """Watts as the meter has them: idle power, and of what is *drawn* beyond it the share of launches as long.

    The share has the least sum of relative errors over the rows that were not held back.
    """
    watts = drawn(readings, power)
    classes = np.floor(CLASSES * np.log10(readings.seconds))
    shares = np.ones(len(readings))
    for each in np.unique(classes):
        alike = classes == each
        taught = alike & ~readings.held
        if np.count_nonzero(taught) >= FEWEST:
            shares[alike] = _share(readings.watts[taught], watts[taught], power.idle)
    return np.minimum(power.limit, power.idle + shares * (watts - power.idle))


def _share(read: Floats, watts: Floats, idle: float) -> float:
    """The median of what was *read* beyond *idle* power over what was drawn, weighted by how relative errors go."""
    beyond = np.maximum(watts - idle, 1e-9)
    return float(weighted_median((read - idle) / beyond, beyond / read))


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value that has half of the weight below it."""
    order: NDArray[np.intp] = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])
