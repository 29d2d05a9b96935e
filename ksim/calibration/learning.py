"""Efficiencies for GPUs that nobody has measured, learned from GPUs of other architectures."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from attrs import frozen

from ksim.calibration.dataset import Dataset
from ksim.calibration.fitting import FitSpec, Fitted, efficiency, fit
from ksim.oracles.efficiency.fitted import Efficiency
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import without

#: Factor by which errors grow on GPUs of another architecture than those fitted to: that of quantisation, which has
#: been measured on eight GPUs.
OTHER_ARCHITECTURE = 2.0
#: Factor on intervals that come from errors at known architectures: a new one has a bias of its own.  With it, nine of
#: ten measurements lie in their intervals, as leaving out each architecture shows (81 % do without).
NEW_ARCHITECTURE = 1.35
#: Rows of a GPU's table that intervals and regions are taken from.
_ROWS = 3000


@frozen(eq=False)
class Learned:
    """Fits to all datasets, to those of all architectures but one, and to those of all but two, by what is left out."""

    everything: Fitted
    leaving_out: Mapping[str, Fitted]
    leaving_two: Mapping[frozenset[str], Fitted]


def learn(spec: FitSpec, datasets: Sequence[Dataset]) -> Learned:
    """Fit to all of *datasets*, then once without each architecture, then once without each two of them."""
    architectures = sorted({dataset.gpu.architecture for dataset in datasets})

    def leaving(*out: str) -> Fitted:
        return fit(spec, spec.learned, [dataset for dataset in datasets if dataset.gpu.architecture not in out])

    without_one = {left: leaving(left) for left in architectures} if len(architectures) > 1 else {}
    pairs = combinations(architectures, 2) if len(architectures) > 2 else ()
    return Learned(leaving(), without_one, {frozenset(pair): leaving(*pair) for pair in pairs})


def efficiencies(spec: FitSpec, datasets: Sequence[Dataset], learned: Learned, source: str) -> dict[str, Efficiency]:
    """Return what a profile keeps: an efficiency for new architectures, and one for each known architecture.

    The efficiency for a known architecture has not seen it.  Its intervals come
    from the errors at the other architectures, each held out in turn.
    """
    datasets = [dataset.sample(_ROWS) for dataset in datasets]
    if not learned.leaving_out:
        return {spec.name: _of_one(spec, datasets, learned.everything, source)}
    missed = [_missed(learned.leaving_out[dataset.gpu.architecture], dataset) for dataset in datasets]
    kept = {spec.name: efficiency(learned.everything, datasets, missed, source, NEW_ARCHITECTURE)}
    for left, fitted in learned.leaving_out.items():
        others = [dataset for dataset in datasets if dataset.gpu.architecture != left]
        # If only one architecture is left to learn from, the errors are those at itself.
        widening = NEW_ARCHITECTURE if learned.leaving_two else OTHER_ARCHITECTURE
        fits = [learned.leaving_two.get(frozenset((left, dataset.gpu.architecture)), fitted) for dataset in others]
        errors = [_missed(other_fit, dataset) for other_fit, dataset in zip(fits, others, strict=True)]
        kept[without(spec.name, left)] = efficiency(fitted, others, errors, source, widening)
    return kept


def _of_one(spec: FitSpec, datasets: Sequence[Dataset], fitted: Fitted, source: str) -> Efficiency:
    """Return the efficiency learned from one architecture: its intervals are the errors there, widened for others."""
    return efficiency(fitted, datasets, [_missed(fitted, dataset) for dataset in datasets],
                      f"{source}; of one architecture, intervals doubled for others", OTHER_ARCHITECTURE)


def _missed(fitted: Fitted, dataset: Dataset) -> Array:
    """Return log(measured / predicted)."""
    missed: Array = np.log(dataset.seconds / fitted.predict(dataset))
    return missed
