"""Protocols: the ways to predict measured rows with a calibrated oracle that has seen some, all or none of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ksim.calibration.dataset import Dataset, join
from ksim.calibration.fitting import FitSpec, Fitted, Selected, cross_validate
from ksim.calibration.kernels import kernels
from ksim.calibration.learning import efficiencies, learn
from ksim.calibration.measurements import Measurements
from ksim.oracles import estimate
from ksim.oracles.efficiency.fitted import Efficiency
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profiled import Profiled
from ksim.specs.hardware import Gpu
from ksim.validation.kernels.cells import PredictedRows

#: How many rows of a table are priced where an oracle prices kernels one by one.
ONE_BY_ONE = 400


def predict_by_profile(profiled: Profiled, spec: FitSpec, rows: Measurements, dataset: Dataset,
                       how: str) -> PredictedRows | None:
    """Predict *rows* as the oracle prices them; None where the profile does not have this family."""
    names = (spec.name, *spec.like)
    total = np.stack([dataset.other_seconds] * 3)
    for part in dataset.parts:
        priced = profiled.price(spec.family, names, part, dataset.gpu)
        if priced is None:
            return None
        prices = priced[2]
        total = total + np.stack([prices.seconds, prices.low, prices.high])
    return _predicted_rows(rows, dataset.gpu, how, total)


def predict_held_out(spec: FitSpec, rows: Sequence[Measurements],
                     datasets: Sequence[Dataset]) -> Iterator[PredictedRows]:
    """Predict the rows that a profile is fitted to, each part by a fit without it, and check rows by the whole fit."""
    dataset, swept = join(datasets).divisible(), rows[0].source.swept
    found = cross_validate(spec, dataset, swept)
    predicted = found.fitted.predict(dataset)
    predicted[~dataset.checks] = found.seconds
    start = 0
    for part, own in zip(rows, datasets, strict=True):
        here = slice(start, start + len(own))
        low, high = _interval(found.fitted, found.efficiency, own)
        table = np.stack([predicted[here], predicted[here] * low, predicted[here] * high])
        for how, of in (("held out", ~own.checks), ("check", own.checks)):
            if of.any():
                yield _predicted_rows(part.take(of), own.gpu, how, table[:, of])
        start += len(own)


def predict_from_others(spec: FitSpec, datasets: Sequence[Dataset], targets: Sequence[tuple[Measurements, Dataset]],
                        how: str) -> Iterator[PredictedRows]:
    """Predict *targets* by what was learned from *datasets* of other GPUs alone."""
    learned = learn(spec, datasets)
    fitted = efficiencies(spec, datasets, learned, "")[spec.name]
    for rows, dataset in targets:
        yield _predicted_rows(rows, dataset.gpu, how, _priced(learned.everything, fitted, dataset))


def predict_from_grid(spec: FitSpec, selected: Selected) -> Iterator[PredictedRows]:
    """Predict all rows by a fit to the few that a sweep would have measured."""
    assert spec.grid is not None
    grids = [spec.grid(rows) for rows in selected.rows]
    dataset = join([own.take(grid) for own, grid in zip(selected.core, grids, strict=True)]).divisible()
    found = cross_validate(spec, dataset, swept=False, folds=3)
    share = len(dataset) / sum(len(rows) for rows in selected.rows)
    for rows, own, grid in zip(selected.rows, selected.core, grids, strict=True):
        rest = own.take(~grid)
        yield _predicted_rows(rows.take(~grid), own.gpu, f"from {share:.1%} of the rows",
                              _priced(found.fitted, found.efficiency, rest))


def predict_one_by_one(oracle: Any, rows: Measurements, dataset: Dataset, how: str) -> PredictedRows:
    """Predict a sample of *rows* with an oracle that prices kernels one by one."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:ONE_BY_ONE])
    sample, others = rows.take(chosen), dataset.other_seconds[chosen]
    priced = [[estimate(oracle, kernel, dataset.gpu) for kernel in kernels(sample, i)] for i in range(len(sample))]
    table = np.array([[sum(getattr(kernel, name) for kernel in point) for point in priced]
                      for name in ("seconds", "low", "high")])
    return _predicted_rows(sample, dataset.gpu, how, table + others * (len(dataset.parts) == 1))


def _predicted_rows(rows: Measurements, gpu: Gpu, how: str, table: Array) -> PredictedRows:
    """*rows* with the predictions in *table*: seconds, and the ends of their intervals."""
    return PredictedRows(rows.gpu or gpu.name, _family(rows), rows, how, *table)


def _family(rows: Measurements) -> str:
    """The family of *rows*; public tables of attention are two, of prompts and of generation."""
    if rows.family == "attention" and not rows.source.swept:
        return "attention_context" if (rows.tags == "prefill").all() else "attention_generation"
    return rows.family


def _interval(fitted: Fitted, priced: Efficiency, dataset: Dataset) -> tuple[Array, Array]:
    """The factors from an estimate to the ends of its interval."""
    place = fitted.place(dataset)
    low, high = priced.spread.interval(place, priced.region.beyond(place))
    return np.exp(low), np.exp(high)


def _priced(fitted: Fitted, priced: Efficiency, dataset: Dataset) -> Array:
    seconds, (low, high) = fitted.predict(dataset), _interval(fitted, priced, dataset)
    own = seconds - dataset.other_seconds
    return np.stack([seconds, own * low + dataset.other_seconds, own * high + dataset.other_seconds])
