"""Predict measured rows, in each of the ways that a calibrated oracle can be judged."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ksim.calibration.dataset import Dataset, join
from ksim.calibration.fitting import FitSpec, Fitted, Selected, cross_validate
from ksim.calibration.kernels import kernels
from ksim.calibration.learning import efficiencies, learn
from ksim.calibration.measurements import Measurements
from ksim.oracles import estimate
from ksim.oracles.efficiency.physics import Array
from ksim.oracles.efficiency.profile import Efficiency
from ksim.oracles.efficiency.profiled import Profiled
from ksim.specs.hardware import Gpu
from ksim.validation.kernels.cells import Judged

#: Rows of a cell that are priced one by one, where an oracle knows kernels and no tables.
ONE_BY_ONE = 400


def by_profile(profiled: Profiled, spec: FitSpec, rows: Measurements, dataset: Dataset, how: str) -> Judged | None:
    """As the oracle prices them; None where the profile has nothing to say."""
    names = (spec.name, *spec.like)
    total = np.stack([dataset.other_seconds] * 3)
    for part in dataset.parts:
        priced = profiled.price(spec.family, names, part, dataset.gpu)
        if priced is None:
            return None
        prices = priced[2]
        total = total + np.stack([prices.seconds, prices.low, prices.high])
    return judged(rows, dataset.gpu, how, total)


def by_holding_out(spec: FitSpec, rows: Sequence[Measurements], datasets: Sequence[Dataset]) -> Iterator[Judged]:
    """As a profile fitted to these very rows would, but each part of them left out in turn; checks by the whole fit."""
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
                yield judged(part.take(of), own.gpu, how, table[:, of])
        start += len(own)


def by_others(spec: FitSpec, datasets: Sequence[Dataset], targets: Sequence[tuple[Measurements, Dataset]],
              how: str) -> Iterator[Judged]:
    """As learned from *datasets*, of other GPUs, alone."""
    learned = learn(spec, datasets)
    fitted = efficiencies(spec, datasets, learned, "")[spec.name]
    for rows, dataset in targets:
        yield judged(rows, dataset.gpu, how, _priced(learned.everything, fitted, dataset))


def by_grid(spec: FitSpec, selected: Selected) -> Iterator[Judged]:
    """As fitted to the few rows that a sweep would have measured; judged at all others."""
    assert spec.grid is not None
    grids = [spec.grid(rows) for rows in selected.rows]
    dataset = join([own.take(grid) for own, grid in zip(selected.core, grids, strict=True)]).divisible()
    found = cross_validate(spec, dataset, swept=False, folds=3)
    share = len(dataset) / sum(len(rows) for rows in selected.rows)
    for rows, own, grid in zip(selected.rows, selected.core, grids, strict=True):
        rest = own.take(~grid)
        yield judged(rows.take(~grid), own.gpu, f"from {share:.1%} of the rows",
                     _priced(found.fitted, found.efficiency, rest))


def one_by_one(oracle: Any, rows: Measurements, dataset: Dataset, how: str) -> Judged:
    """As any oracle prices kernels; of many rows, a sample."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:ONE_BY_ONE])
    sample, others = rows.take(chosen), dataset.other_seconds[chosen]
    found = [[estimate(oracle, kernel, dataset.gpu) for kernel in kernels(sample, i)] for i in range(len(sample))]
    table = np.array([[sum(getattr(each, name) for each in point) for point in found]
                      for name in ("seconds", "low", "high")])
    return judged(sample, dataset.gpu, how, table + others * (len(dataset.parts) == 1))


def judged(rows: Measurements, gpu: Gpu, how: str, table: Array) -> Judged:
    """*table* has the seconds, and the ends of their intervals."""
    return Judged(rows.gpu or gpu.name, _family(rows), rows, how, *table)


def _family(rows: Measurements) -> str:
    """Attention's tables are two: of prompts, and of generation."""
    if rows.family == "attention" and not rows.source.swept:
        return "attention_context" if (rows.tags == "prefill").all() else "attention_generation"
    return rows.family


def _interval(fitted: Fitted, priced: Efficiency, dataset: Dataset) -> tuple[Array, Array]:
    """Factors from an estimate to the ends of its interval."""
    place = fitted.place(dataset)
    low, high = priced.spread.interval(place, priced.region.beyond(place))
    return np.exp(low), np.exp(high)


def _priced(fitted: Fitted, priced: Efficiency, dataset: Dataset) -> Array:
    seconds, (low, high) = fitted.predict(dataset), _interval(fitted, priced, dataset)
    own = seconds - dataset.other_seconds
    return np.stack([seconds, own * low + dataset.other_seconds, own * high + dataset.other_seconds])
