"""How good energy is: against sustained kernels, serving runs and public tables of power, whichever are there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import field, frozen
from attrs.validators import ge

from ksim.calibration.power import boards, sustained
from ksim.foundation.errors import DataError
from ksim.validation.energy import of_boards, of_kernels
from ksim.validation.serving import judging
from ksim.validation.serving.replay import Setting

__all__ = ["Question", "Verdict", "as_table", "validate"]


@frozen
class Question:
    """What to judge: the file or folder at `path`.

    `gpu` is what sustained kernels and serving runs are of, which do not name it; `limit` takes so many rows of a
    public table, drawn by the hashes of their shapes, 0 all.
    """

    path: Path
    gpu: str = "h200"
    limit: int = field(default=0, validator=ge(0))


@frozen
class Verdict:
    """What there was to judge, sustained kernels, serving runs and a public table; None for what there was not."""

    kernels: of_kernels.Verdict | None = None
    runs: judging.Verdict | None = None
    table: of_boards.Verdict | None = None


def validate(question: Question, say: Callable[[str], None] = lambda _: None) -> Verdict:
    """Answer *question*; raises KsimError for files that cannot be used, and where there is nothing to judge."""
    path = question.path
    if not path.exists():
        raise DataError(str(path), "does not exist")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    swept, public = _only(path, files, sustained.recognises), _only(path, files, boards.recognises)
    played = any(file.match("engine_*.json") for file in files)
    if not (swept or public or played):
        raise DataError(str(path), "has nothing to judge energy by; expected a table of sustained kernels (a column"
                                   " energy_mj_per_kernel), a table of kernels with the power of boards (power_w), or"
                                   " serving runs (engine_*.json)")
    say("judging kernels")
    return Verdict(of_kernels.judge(swept, question.gpu) if swept else None,
                   judging.serving(path, Setting(gpu=question.gpu), say) if played else None,
                   of_boards.judge(public, question.limit) if public else None)


def _only(path: Path, files: list[Path], recognises: Callable[[Path], bool]) -> Path | None:
    found = [file for file in files if recognises(file)]
    if len(found) > 1:
        raise DataError(str(path), f"has more than one such table: {', '.join(file.name for file in found)}; name one")
    return found[0] if found else None


def as_table(verdict: Verdict) -> dict[str, Any]:
    """The verdict for a JSON file; what was not judged is left out."""
    table: dict[str, Any] = {}
    if verdict.kernels:
        table |= of_kernels.as_table(verdict.kernels)
    if verdict.runs:
        table |= _of_runs(verdict.runs)
    if verdict.table:
        table |= of_boards.as_table(verdict.table)
    return table


def _of_runs(verdict: judging.Verdict) -> dict[str, Any]:
    metered = verdict.metered
    return {"serving_median_ape": verdict.median_ape("joules") if metered else None,
            "serving": [{"recording": run.recording, "run": run.run, "joules": run.measured.joules,
                         "predicted_joules": run.predicted.joules, "error": run.errors.joules} for run in metered]}
