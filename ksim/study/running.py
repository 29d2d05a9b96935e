"""Runs of a study, each in a worker, and kept as it ends."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ksim.foundation.errors import UnknownKey, UnknownName
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import try_to_build
from ksim.study.directory import StudyDirectory
from ksim.study.grid import Outcome, Settings, outcome, value_text
from ksim.study.rows import Row
from ksim.study.workers import PROCESSES, Workers, workers


def played(scenario: Scenario, rows: Sequence[Row], pool: Workers) -> Iterator[tuple[Row, Outcome]]:
    """Run *scenario* for each of *rows*; yield the row and how it went as each ends, in any order."""
    for place, ended in pool.run(partial(outcome, scenario), [row.changes for row in rows]):
        yield rows[place], ended


def run_rows(scenario: Scenario, rows: Sequence[Row], keep: Callable[[Row], None], jobs: int | None = None,
             on: str = PROCESSES, address: str | None = None) -> None:
    """Run *scenario* for each of *rows* with `workers`, and *keep* each row as it ends."""
    if not rows:
        return
    with workers(jobs, on, address, most=len(rows)) as pool:
        for row, ended in played(scenario, rows, pool):
            keep(Row.of(row.point, row.replication, row.seed, row.settings, ended))


def run_into(study: StudyDirectory, scenario: Scenario, rows: Sequence[Row], on_end: Callable[[], None] = lambda: None,
             jobs: int | None = None, on: str = PROCESSES, address: str | None = None,
             run: Callable[..., None] = run_rows) -> None:
    """Have *run* run those of *rows* that *study* does not have yet, and write its table, whatever ends this.

    `on_end` is called for each run that ends.
    """
    def keep(row: Row) -> None:
        study.add(row)
        on_end()

    try:
        run(scenario, study.without(rows), keep, jobs, on, address)
    finally:
        study.finish(study.without(rows))


def check_names(scenario: Scenario, points: Sequence[Settings],
                mistakes: tuple[type[Exception], ...] = (UnknownName, UnknownKey)) -> None:
    """Raise the UnknownName or UnknownKey of a name or key that is not there, before anything runs.

    That is a mistake in any study, unlike a model that does not fit, which is an answer.
    """
    for settings in _with_new_names(points):
        try:
            try_to_build(scenario.with_values(settings))
        except mistakes:
            raise
        except Exception:  # it will be the problem of this point
            continue


def _with_new_names(points: Sequence[Settings]) -> Iterator[Settings]:
    """Those of *points* in which a key or a value comes for the first time; numbers are no names."""
    known: set[tuple[str, str]] = set()
    for settings in points:
        names = {(key, "" if isinstance(value, int | float) else value_text(value)) for key, value in settings.items()}
        if not names <= known:
            known |= names
            yield settings
