"""The power that a board's meter shows while the kernels of a public table run, predicted from the power model.

Collectors read NVML's power every 100 ms for 0.3 to 1 s or longer (AIConfigurator, collector/helper.py).  Each reading
is a mean over about the second before it, which includes the time when buffers were set up and the GPU was idle.
"""

import numpy as np
from numpy.typing import NDArray

from ksim.calibration.batches import Floats
from ksim.calibration.power.boards import Readings
from ksim.calibration.power.sustained import joules_of
from ksim.specs.power import Power

#: Classes of launch times per factor of ten: how long a kernel is measured depends on its time.
CLASSES = 2
#: The fewest rows of a class that a share is fitted to.
FEWEST = 20


def model_watts(readings: Readings, power: Power) -> Floats:
    """Return the mean power of each launch by the power model, at its measured time."""
    dynamic = readings.counts @ joules_of(power) / readings.seconds
    return np.minimum(power.limit, power.idle + dynamic)


def metered_watts(readings: Readings, power: Power) -> Floats:
    """Return the power that the meter shows: idle power, and a share of what a launch draws beyond it.

    Launches of similar times have the same share.  It has the least sum of relative errors over the rows that are not
    held out.
    """
    watts = model_watts(readings, power)
    classes = np.floor(CLASSES * np.log10(readings.seconds))
    shares = np.ones(len(readings))
    for time_class in np.unique(classes):
        members = classes == time_class
        fitted = members & ~readings.held_out
        if np.count_nonzero(fitted) >= FEWEST:
            shares[members] = _share(readings.watts[fitted], watts[fitted], power.idle)
    return np.minimum(power.limit, power.idle + shares * (watts - power.idle))


def _share(metered: Floats, watts: Floats, idle: float) -> float:
    """Return the weighted median of (metered - idle) / (drawn - idle): it has the least sum of relative errors."""
    beyond = np.maximum(watts - idle, 1e-9)
    return float(weighted_median((metered - idle) / beyond, beyond / metered))


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the value that has half of the weight below it."""
    order: NDArray[np.intp] = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])
