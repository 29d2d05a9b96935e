"""Efficiencies for GPUs that nobody has measured, learned from GPUs of other architectures, and how good they are.

`python -m benchmarks.research kernels` predicts the kernels of some GPUs by what others taught.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from attrs import frozen

from ksim.calibration.accuracy import (
    KernelReport,
    Notes,
    PredictedRows,
    Question,
    of_gpu,
    predicted_rows,
    priced_with_intervals,
    validate,
)
from ksim.calibration.dataset import Dataset
from ksim.calibration.fitting import FitSpec, Fitted, Selected, efficiency, fit
from ksim.calibration.measurements import Measurements
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.models import Array, Efficiency
from ksim.oracles.efficiency.profiled import without

#: Factor by which errors grow on GPUs of another architecture than those fitted to: that of quantisation, which has
#: been measured on eight GPUs.
OTHER_ARCHITECTURE = 2.0
#: Factor on intervals that come from errors at known architectures: a new one has a bias of its own.  With it, nine of
#: ten measurements lie in their intervals, as leaving out each architecture shows (81 % do without).
NEW_ARCHITECTURE = 1.35
#: Rows of a GPU's table that intervals and regions are taken from.
_ROWS = 3000


@frozen(eq=False)
class LearnedFits:
    """Fits to all datasets, to those of all architectures but one, and to those of all but two, by what is left out."""

    everything: Fitted
    leaving_out: Mapping[str, Fitted]
    leaving_two: Mapping[frozenset[str], Fitted]


def learn(spec: FitSpec, datasets: Sequence[Dataset]) -> LearnedFits:
    """Fit to all of *datasets*, then once without each architecture, then once without each two of them."""
    architectures = sorted({dataset.gpu.architecture for dataset in datasets})

    def leaving(*out: str) -> Fitted:
        return fit(spec, spec.learned, [dataset for dataset in datasets if dataset.gpu.architecture not in out])

    without_one = {left: leaving(left) for left in architectures} if len(architectures) > 1 else {}
    pairs = combinations(architectures, 2) if len(architectures) > 2 else ()
    return LearnedFits(leaving(), without_one, {frozenset(pair): leaving(*pair) for pair in pairs})


def efficiencies(spec: FitSpec, datasets: Sequence[Dataset], learned: LearnedFits,
                 source: str) -> dict[str, Efficiency]:
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


def validate_apart(path: Path, gpu: str = "", leave_out: str = "", train: Sequence[str] = (),
                   say: Callable[[str], None] = lambda _: None) -> KernelReport:
    """Compare what other GPUs at *path* teach with the measurements of some; raises KsimError for unusable ones.

    Raises ConfigError where both or none of *leave_out* and *train* are given.
    """
    if bool(leave_out) == bool(train):
        raise ConfigError("--train", "names the GPUs to learn from, and --leave-out those not to; give one of them")
    question = Question(path=path, gpu=gpu, oracle=Choice("learned"))
    return validate(question, say, partial(predict_apart, leave_out, train))


def predict_apart(leave_out: str, train: Sequence[str], question: Question, spec: FitSpec,
                  selected: Sequence[Selected], notes: Notes) -> Iterator[PredictedRows]:
    """Predict some GPUs by what is learned from others.

    *leave_out* names a GPU or an architecture that is predicted from all others; *train* names the GPUs to learn from.
    """
    if train:
        teachers = [own for own in selected if _is(own, train)]
        pupils = [own for own in of_gpu(selected, question.gpu) if own not in teachers]
        how = f"from {', '.join(train)}"
    else:
        architectures = {own.gpu.architecture for own in selected if _is(own, (leave_out,))}
        if not architectures and leave_out not in _all_names(selected):
            notes.remarks.append(f"{spec.name}: has no rows of {leave_out!r}")
            return
        # GPUs of one architecture are nearly the same, so they are left out together.
        teachers = [own for own in selected if own.gpu.architecture not in architectures]
        pupils = [own for own in selected if _is(own, (leave_out,))]
        how = f"without {', '.join(sorted(architectures))}"
    if not teachers or not pupils:
        notes.remarks.append(f"{spec.name}: no GPU to learn it from, or none to predict")
        return
    yield from predict_from_others(spec, [dataset for own in teachers for dataset in own.core],
                                   [pair for own in pupils for pair in zip(own.rows, own.core, strict=True)], how)


def predict_from_others(spec: FitSpec, datasets: Sequence[Dataset], targets: Sequence[tuple[Measurements, Dataset]],
                        how: str) -> Iterator[PredictedRows]:
    """Predict *targets* by what was learned from *datasets* of other GPUs alone."""
    learned = learn(spec, datasets)
    fitted = efficiencies(spec, datasets, learned, "")[spec.name]
    for rows, dataset in targets:
        yield predicted_rows(rows, dataset.gpu, how, priced_with_intervals(learned.everything, fitted, dataset))


def _is(own: Selected, names: Sequence[str]) -> bool:
    """Whether one of *names* is this GPU or its architecture."""
    return bool({own.rows[0].gpu, own.rows[0].source.device, own.gpu.architecture} & {*names})


def _all_names(selected: Sequence[Selected]) -> set[str]:
    return {name for own in selected for name in (own.rows[0].gpu or "", own.gpu.architecture)}
