"""Compare oracles with measured kernels."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ksim.calibration.checks import TooFew, check, gpu_of
from ksim.calibration.fitting import FitSpec, LeftOut, Selected, select
from ksim.calibration.ingest import digest
from ksim.calibration.kernels import MAKERS
from ksim.calibration.measurements import Measurements
from ksim.calibration.reading import read
from ksim.calibration.recipes import by_spec
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.plugins import plugin
from ksim.oracles.efficiency.profile import Profile, shipped
from ksim.oracles.efficiency.profiled import Profiled, ProfileOracle
from ksim.specs.hardware import Gpu
from ksim.validation.kernels.cells import Cell, PredictedRows, cells, coverage, families
from ksim.validation.kernels.protocols import (
    predict_by_profile,
    predict_from_grid,
    predict_from_others,
    predict_held_out,
    predict_one_by_one,
)

__all__ = ["Cell", "Question", "KernelReport", "validate"]


@frozen(kw_only=True)
class Question:
    """Which `oracle` to compare with the measurements at `path`, of all GPUs or only of `gpu`.

    `leave_out` names a GPU or an architecture that is predicted from all others at `path`; `train` names the GPUs to
    learn from.
    """

    path: Path
    gpu: str = ""
    oracle: Choice
    leave_out: str = ""
    train: tuple[str, ...] = ()


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


def validate(question: Question, say: Callable[[str], None] = lambda _: None) -> KernelReport:
    """Compare the oracle with the measurements; raises KsimError for measurements that cannot be used."""
    notes = _Notes()
    measured = read(question.path)
    oracle = plugin("oracles", question.oracle)
    predicted: list[PredictedRows] = []
    for spec, taken in by_spec(measured):
        say(spec.name)
        selected = tuple(_selected(spec, taken, question, notes))
        predicted += _predict(question, oracle, spec, selected, notes)
    if not predicted:
        gpus = ", ".join(sorted({rows.gpu or rows.source.device or "one that it does not name" for rows in measured}))
        problem = f"has nothing to compare with; it is of {gpus}"
        raise DataError(str(question.path), "; ".join([problem, *notes.remarks]))
    return KernelReport(tuple(cells(predicted)), families(predicted), coverage(predicted), tuple(notes.left),
                        tuple(notes.remarks))


@define
class _Notes:
    """Remarks, and the rows left out."""

    left: list[tuple[str, LeftOut]] = field(factory=list)
    remarks: list[str] = field(factory=list)


def _selected(spec: FitSpec, taken: Sequence[Measurements], question: Question, notes: _Notes) -> Iterator[Selected]:
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


def _predict(question: Question, oracle: Any, spec: FitSpec, selected: Sequence[Selected],
             notes: _Notes) -> Iterator[PredictedRows]:
    """Predict by the protocol that the question and the kind of the measurements ask for."""
    if question.leave_out or question.train:
        yield from _apart(question, spec, selected, notes)
        return
    for own in _wanted(selected, question.gpu):
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


def _priced(oracle: Any, spec: FitSpec, own: Selected, notes: _Notes) -> Iterator[PredictedRows]:
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


def _apart(question: Question, spec: FitSpec, selected: Sequence[Selected], notes: _Notes) -> Iterator[PredictedRows]:
    """Predict some GPUs by what is learned from others."""
    if question.train:
        teachers = [own for own in selected if _is(own, question.train)]
        pupils = [own for own in _wanted(selected, question.gpu) if own not in teachers]
        how = f"from {', '.join(question.train)}"
    else:
        architectures = {own.gpu.architecture for own in selected if _is(own, (question.leave_out,))}
        if not architectures and question.leave_out not in _all_names(selected):
            notes.remarks.append(f"{spec.name}: has no rows of {question.leave_out!r}")
            return
        # GPUs of one architecture are nearly the same, so they are left out together.
        teachers = [own for own in selected if own.gpu.architecture not in architectures]
        pupils = [own for own in selected if _is(own, (question.leave_out,))]
        how = f"without {', '.join(sorted(architectures))}"
    if not teachers or not pupils:
        notes.remarks.append(f"{spec.name}: no GPU to learn it from, or none to predict")
        return
    yield from predict_from_others(spec, [dataset for own in teachers for dataset in own.core],
                                   [pair for own in pupils for pair in zip(own.rows, own.core, strict=True)], how)


def _wanted(selected: Sequence[Selected], gpu: str) -> Sequence[Selected]:
    return [own for own in selected if not gpu or gpu in (own.rows[0].gpu, own.rows[0].source.device) or (
        own.rows[0].gpu is None)]


def _is(own: Selected, names: Sequence[str]) -> bool:
    """Whether one of *names* is this GPU or its architecture."""
    return bool({own.rows[0].gpu, own.rows[0].source.device, own.gpu.architecture} & {*names})


def _all_names(selected: Sequence[Selected]) -> set[str]:
    return {name for own in selected for name in (own.rows[0].gpu or "", own.gpu.architecture)}


def _fitted_to(own: Selected, path: Path) -> bool:
    """Whether the profile at *path* was fitted to one of these very files."""
    if not path.exists():
        return False
    known = set(Profile.load(path).header.get("fitted_to", {}).values())
    return not known.isdisjoint(digest(Path(rows.source.file)) for rows in own.rows)


def check_question(question: Question) -> None:
    """Raise ConfigError for options that contradict each other."""
    if question.leave_out and question.train:
        raise ConfigError("--train", "names the GPUs to learn from, and --leave-out those not to; give one of them")
    if (question.leave_out or question.train) and question.oracle.name != "learned":
        raise ConfigError("--oracle", f"{question.oracle.name} learns from no other GPU; only 'learned' does")
