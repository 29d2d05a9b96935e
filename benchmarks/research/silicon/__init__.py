"""Compare measured serving runs of vLLM, SGLang and TensorRT-LLM with simulations of them."""

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from attrs import evolve, field, frozen
from attrs.validators import ge, in_

from benchmarks.research.silicon import workers
from benchmarks.research.silicon.rows import NotRun, Row, read, reference
from benchmarks.research.silicon.runs import (
    Answer,
    Reference,
    Score,
    answers,
    backend_of,
    group_of,
    scenario,
    score,
    scores,
    tier_of,
)
from ksim.foundation.errors import ConfigError, DataError

__all__ = ["Answer", "NotRun", "Question", "Row", "Score", "SiliconReport", "chosen", "find", "scenario", "validate"]

#: The file of the other simulator's answers, if it lies beside the measurements.
_BESIDE = "aiconfigurator_predictions.parquet"


@frozen(kw_only=True)
class Question:
    """Which rows of the table at `path` to simulate: those without flags and without copies, or `all_rows`.

    Disaggregated rows are among them where a table of worker counts is found, with flags or without: flags say that
    copies differ, which speculative decoding explains.  `workers` is that table, by default the one beside `path`.
    `mode` selects "agg" or "disagg" rows alone; `backend`, `model` and `system` select rows by the values in the table;
    `model` may be part of a path.  `limit` takes so many rows, drawn by the hashes of their groups; 0 takes all.
    `statistic` is "mean" or "median" over requests, or "" for the one that each source states.  `reference` is a table
    of another simulator's answers.
    """

    path: Path
    backend: str = ""
    model: str = ""
    system: str = ""
    mode: str = field(default="", validator=in_(("", "agg", "disagg")))
    workers: Path | None = None
    limit: int = field(default=0, validator=ge(0))
    all_rows: bool = False
    statistic: str = field(default="", validator=in_(("", "mean", "median")))
    reference: Path | None = None
    jobs: int = field(default=1, validator=ge(1))


@frozen(eq=False)
class SiliconReport:
    """The answers row by row, and scores by kind of run, by backend, by tier of disaggregated runs and over all.

    `reasons` counts the rows that could not be simulated.
    """

    answers: tuple[Answer, ...]
    groups: tuple[Score, ...]
    backends: tuple[Score, ...]
    tiers: tuple[Score, ...]
    whole: Score
    reasons: dict[str, int]
    reference: Reference


def validate(question: Question, say: Callable[[int, int], None] = lambda done, of: None) -> SiliconReport:
    """Simulate the rows and score the answers; *say* is called with how many are done, and of how many.

    Raises DataError for tables that cannot be used, ConfigError where no row is asked for.
    """
    rows = chosen(question)
    others = _others(question)
    given = []
    for done, answer in enumerate(answers(rows, question.jobs), 1):
        given.append(answer)
        say(done, len(rows))
    given.sort(key=lambda answer: answer.row.id)
    reasons = Counter(answer.reason for answer in given if answer.reason)
    split = [answer for answer in given if not answer.reason and answer.row.mode == "disagg"]
    groups, backends, tiers = (tuple(scores(some, key, question.statistic, others))
                               for some, key in ((given, group_of), (given, backend_of), (split, tier_of)))
    return SiliconReport(tuple(given), groups, backends, tiers, score(("all",), given, question.statistic, others),
                         dict(reasons.most_common()), others)


def chosen(question: Question) -> list[Row]:
    """The rows that *question* selects, in the table's order."""
    rows = [row for row in _rows(question.path, question.workers) if _wanted(row, question)]
    if not rows:
        raise ConfigError(str(question.path), "has no row that is asked for; see --all-rows, --mode, --backend, --model"
                                              " and --system")
    drawn = sorted(rows, key=lambda row: (sha256(row.group.encode()).digest(), row.id))[:question.limit or None]
    names = {row.id for row in drawn}
    return [row for row in rows if row.id in names]


def find(path: Path, name: str, counts: Path | None = None) -> Row:
    """The row called *name*, with worker counts from the table *counts*; raises DataError where there is none."""
    for row in _rows(path, counts):
        if row.id == name:
            return row
    raise DataError(str(path), f"has no row with id {name!r}")


def _rows(path: Path, counts: Path | None) -> list[Row]:
    """The rows at *path* with what tables say of their deployments: worker counts, and speculative decoding."""
    rows = read(path)
    table = counts or workers.beside(path)
    if table is None:
        return rows
    known, beside = workers.read(table), table.with_name(workers.WHOLE)
    whole = workers.read_whole(beside) if beside.exists() else {}
    return [evolve(row, split=known.get(row.id, workers.UNKNOWN)) if row.mode == "disagg" else
            evolve(row, whole=whole.get(row.id)) for row in rows]


def _wanted(row: Row, question: Question) -> bool:
    return (question.mode in ("", row.mode) and (question.all_rows or _usual(row, question))
            and question.backend in ("", row.backend) and question.system in ("", row.system)
            and question.model.lower() in row.model_path.lower())


def _usual(row: Row, question: Question) -> bool:
    if row.mode == "agg":
        return row.primary and (not row.flags or row.speculation == "mtp")
    return row.primary and (row.split is not None or question.mode == "disagg")


def _others(question: Question) -> Reference:
    beside = question.path.parent / _BESIDE
    path = question.reference or (beside if beside.exists() else None)
    return reference(path) if path else {}
