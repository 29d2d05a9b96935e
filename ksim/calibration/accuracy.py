"""How well oracles predict measured kernels: those that they have seen some, all or none of.

Errors come cell by cell: by GPU, family of kernels, number format, and purpose of the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ksim.calibration.calibrate import digest
from ksim.calibration.checks import TooFew, check, gpu_of
from ksim.calibration.dataset import Dataset, join
from ksim.calibration.fitting import FitSpec, Fitted, LeftOut, Selected, cross_validate, select
from ksim.calibration.kernels import MAKERS, kernels
from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import read
from ksim.calibration.recipes import by_spec
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError
from ksim.oracles import estimate
from ksim.oracles.efficiency.models import Array, Efficiency
from ksim.oracles.efficiency.profiled import Profile, Profiled, ProfileOracle, shipped
from ksim.specs.hardware import Gpu

#: How many of its worst shapes a cell names.
WORST = 5


@frozen(eq=False)
class PredictedRows:
    """Measured rows of one GPU, family and format, and the seconds predicted for them.

    `how` says whether the prediction had seen these rows.  `low` and `high` are the ends of the 90 % intervals; nan
    where there are none.
    """

    gpu: str
    family: str
    rows: Measurements
    how: str
    seconds: Array
    low: Array
    high: Array

    @property
    def errors(self) -> Array:
        """Predicted over measured seconds, less one."""
        return np.asarray(self.seconds / self.rows.seconds - 1)


@frozen
class Cell:
    """Errors in per cent of the rows with one tag.

    `mape` is the mean absolute error; `median`, `p90` and `p99` are its quantiles; `bias` is the mean signed error.
    `coverage` is the share of rows inside their 90 % intervals.
    """

    gpu: str
    family: str
    dtype: str
    tag: str
    how: str
    points: int
    mape: float
    median: float
    p90: float
    p99: float
    bias: float
    coverage: float | None
    worst: tuple[str, ...]


def cells(predicted: Iterable[PredictedRows]) -> Iterator[Cell]:
    """A cell for each tag of each table of rows."""
    for part in predicted:
        for tag in np.unique(part.rows.tags):
            yield _cell(part, str(tag), part.rows.tags == tag)


def _cell(predicted: PredictedRows, tag: str, of: np.ndarray[Any, np.dtype[np.bool_]]) -> Cell:
    errors, rows = 100 * predicted.errors[of], predicted.rows.take(of)
    size = np.abs(errors)
    inside = (predicted.low[of] <= rows.seconds) & (rows.seconds <= predicted.high[of])
    worst = [f"{rows.describe(int(i))}: {1e6 * rows.seconds[i]:.4g} us, {errors[i]:+.0f} %"
             for i in np.argsort(-size)[:WORST]]
    median, p90, p99 = np.percentile(size, (50, 90, 99)).tolist()
    covered = None if np.isnan(predicted.low[of]).any() else 100 * float(inside.mean())
    return Cell(
        gpu=predicted.gpu, family=predicted.family, dtype=predicted.rows.dtype, tag=tag, how=predicted.how,
        points=len(rows), mape=float(size.mean()), median=median, p90=p90, p99=p99, bias=float(errors.mean()),
        coverage=covered, worst=tuple(worst))


def families(predicted: Sequence[PredictedRows]) -> dict[str, dict[str, float]]:
    """The errors of each family in per cent, as means over GPUs; formats other than BF16 are families of their own."""
    names = dict.fromkeys(name_of(part) for part in predicted)
    errors = {}
    for name in names:
        by_gpu: dict[str, list[Array]] = {}
        for part in predicted:
            if name_of(part) == name:
                by_gpu.setdefault(part.gpu, []).append(100 * np.abs(part.errors))
        sizes = [np.concatenate(parts) for parts in by_gpu.values()]
        errors[name] = {"mape": float(np.mean([size.mean() for size in sizes])),
                        "median": float(np.mean([np.median(size) for size in sizes])),
                        "points": sum(len(size) for size in sizes)}
    return errors


def name_of(predicted: PredictedRows) -> str:
    """The family of the rows, with their format unless that is BF16."""
    return predicted.family if predicted.rows.dtype == "bf16" else f"{predicted.family}/{predicted.rows.dtype}"


def coverage(predicted: Sequence[PredictedRows]) -> float | None:
    """The share in per cent of rows that lie inside their intervals; None where there are no intervals."""
    known = [part for part in predicted if not np.isnan(part.low).any()]
    if not known:
        return None
    return 100 * float(np.mean(np.concatenate([
        (part.low <= part.rows.seconds) & (part.rows.seconds <= part.high) for part in known])))


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
    return predicted_rows(rows, dataset.gpu, how, total)


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
                yield predicted_rows(part.take(of), own.gpu, how, table[:, of])
        start += len(own)


def predict_from_grid(spec: FitSpec, selected: Selected) -> Iterator[PredictedRows]:
    """Predict all rows by a fit to the few that a sweep would have measured."""
    assert spec.grid is not None
    grids = [spec.grid(rows) for rows in selected.rows]
    dataset = join([own.take(grid) for own, grid in zip(selected.core, grids, strict=True)]).divisible()
    found = cross_validate(spec, dataset, swept=False, folds=3)
    share = len(dataset) / sum(len(rows) for rows in selected.rows)
    for rows, own, grid in zip(selected.rows, selected.core, grids, strict=True):
        rest = own.take(~grid)
        yield predicted_rows(rows.take(~grid), own.gpu, f"from {share:.1%} of the rows",
                              priced_with_intervals(found.fitted, found.efficiency, rest))


def predict_one_by_one(oracle: Any, rows: Measurements, dataset: Dataset, how: str) -> PredictedRows:
    """Predict a sample of *rows* with an oracle that prices kernels one by one."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:ONE_BY_ONE])
    sample, others = rows.take(chosen), dataset.other_seconds[chosen]
    priced = [[estimate(oracle, kernel, dataset.gpu) for kernel in kernels(sample, i)] for i in range(len(sample))]
    table = np.array([[sum(getattr(kernel, name) for kernel in point) for point in priced]
                      for name in ("seconds", "low", "high")])
    return predicted_rows(sample, dataset.gpu, how, table + others * (len(dataset.parts) == 1))


def predicted_rows(rows: Measurements, gpu: Gpu, how: str, table: Array) -> PredictedRows:
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


def priced_with_intervals(fitted: Fitted, priced: Efficiency, dataset: Dataset) -> Array:
    """The seconds of each point of *dataset*, and the ends of their intervals, as three rows."""
    seconds, (low, high) = fitted.predict(dataset), _interval(fitted, priced, dataset)
    own = seconds - dataset.other_seconds
    return np.stack([seconds, own * low + dataset.other_seconds, own * high + dataset.other_seconds])


@frozen(kw_only=True)
class Question:
    """The `oracle` to compare with the measurements at `path`, of all GPUs or only of `gpu`."""

    path: Path
    gpu: str = ""
    oracle: Choice


@frozen(eq=False)
class KernelReport:
    """Errors by cell and by family, with the rows left out and the reasons."""

    cells: tuple[Cell, ...]
    families: dict[str, dict[str, float]]
    coverage: float | None
    left: tuple[tuple[str, LeftOut], ...]
    remarks: tuple[str, ...]

    @property
    def mean(self) -> float:
        """The mean over families of their mean absolute errors in per cent."""
        return sum(family["mape"] for family in self.families.values()) / len(self.families)


@define
class Notes:
    """Remarks, and the rows left out."""

    left: list[tuple[str, LeftOut]] = field(factory=list)
    remarks: list[str] = field(factory=list)


def validate(question: Question, say: Callable[[str], None] = lambda _: None,
             predict: Callable[[Question, FitSpec, Sequence[Selected], Notes], Iterable[PredictedRows]] | None = None
             ) -> KernelReport:
    """Compare the oracle with the measurements, or what *predict* predicts for them.

    Raises KsimError for measurements that cannot be used.
    """
    notes = Notes()
    measured = read(question.path)
    predict = predict or partial(_predict, plugin("oracles", question.oracle))
    predicted: list[PredictedRows] = []
    for spec, taken in by_spec(measured):
        say(spec.name)
        selected = tuple(_selected(spec, taken, question, notes))
        predicted += predict(question, spec, selected, notes)
    if not predicted:
        gpus = ", ".join(sorted({rows.gpu or rows.source.device or "one that it does not name" for rows in measured}))
        problem = f"has nothing to compare with; it is of {gpus}"
        raise DataError(str(question.path), "; ".join([problem, *notes.remarks]))
    return KernelReport(tuple(cells(predicted)), families(predicted), coverage(predicted), tuple(notes.left),
                        tuple(notes.remarks))


def _selected(spec: FitSpec, taken: Sequence[Measurements], question: Question, notes: Notes) -> Iterator[Selected]:
    by_name: dict[str, list[Measurements]] = {}
    for rows in taken:
        gpu = gpu_of(rows, question.gpu if rows.gpu is None else "")
        try:
            checked = check(rows, gpu, fewest=1)
        except TooFew as few:
            notes.remarks.append(str(few))
            continue
        notes.remarks += checked.remarks()
        by_name.setdefault(rows.gpu or question.gpu, []).append(checked.kept)
    for name, tables in by_name.items():
        selected = select(spec, tables, gpu_of(tables[0], name))
        notes.left += [(f"{name} {spec.name}", left) for left in selected.left]
        if outside := sum(map(len, selected.outside_core)):
            assert spec.core is not None
            notes.left.append((f"{name} {spec.name}", LeftOut(f"not core: {spec.core.reason}", outside)))
        if selected.core:
            yield selected


def _predict(oracle: Any, question: Question, spec: FitSpec, selected: Sequence[Selected],
             notes: Notes) -> Iterator[PredictedRows]:
    """Predict by the protocol that the question and the kind of the measurements ask for."""
    for own in of_gpu(selected, question.gpu):
        name = question.oracle.name
        path = question.oracle.options.get("path")
        if name == "measured" and not path and not own.rows[0].source.swept:
            if spec.grid is not None:
                yield from predict_from_grid(spec, own)
            else:
                notes.remarks.append(f"{own.gpu.name}: {spec.name} has no grid that a sweep would measure")
        elif name == "measured" and _fitted_to(own, Path(path) if path else shipped(own.rows[0].gpu or "")):
            yield from predict_held_out(spec, own.rows, own.core)
        else:
            yield from _priced(oracle, spec, own, notes)


def _priced(oracle: Any, spec: FitSpec, own: Selected, notes: Notes) -> Iterator[PredictedRows]:
    """Predict by an oracle as it ships."""
    profiled = _profiled(oracle, own.gpu)
    for rows, dataset in zip(own.rows, own.core, strict=True):
        if profiled is None and spec.measures not in MAKERS:
            notes.remarks.append(f"{own.gpu.name}: {spec.name} has no kernels that this oracle could be asked about")
            continue
        predicted = (predict_one_by_one(oracle, rows, dataset, "unseen") if profiled is None else
                     predict_by_profile(profiled, spec, rows, dataset, "unseen"))
        if predicted is None:
            notes.remarks.append(f"{own.gpu.name}: the profile knows nothing of {spec.name}")
        else:
            yield predicted


def _profiled(oracle: Any, gpu: Gpu) -> Profiled | None:
    return oracle.prices(gpu) if isinstance(oracle, ProfileOracle) else None


def of_gpu(selected: Sequence[Selected], gpu: str) -> Sequence[Selected]:
    """Those of the GPU called *gpu*, or that name none; all where *gpu* is ""."""
    return [own for own in selected if not gpu or gpu in (own.rows[0].gpu, own.rows[0].source.device) or (
        own.rows[0].gpu is None)]


def _fitted_to(own: Selected, path: Path) -> bool:
    """Whether the profile at *path* was fitted to one of these very files."""
    if not path.exists():
        return False
    known = set(Profile.load(path).header.get("fitted_to", {}).values())
    return not known.isdisjoint(digest(Path(rows.source.file)) for rows in own.rows)
