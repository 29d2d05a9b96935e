"""The runs of a comparison: first those with the best router, then others, each held against the one of its seed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import evolve, frozen

from ksim.report.result import Result
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.grid import Outcome, outcome
from ksim.study.routers.measures import Waits, imbalance, regrets
from ksim.study.routers.plan import RoutersPlan
from ksim.study.rows import Row
from ksim.study.workers import PROCESSES, workers


@frozen
class AgainstTheBest:
    """Runs rows of a comparison, as `run_rows` runs those of a sweep."""

    plan: RoutersPlan

    def __call__(self, scenario: Scenario, rows: Sequence[Row], keep: Callable[[Row], None], jobs: int | None = None,
                 on: str = PROCESSES, address: str | None = None) -> None:
        """Run *scenario* for each of *rows*, and *keep* each as it ends.

        Runs with the best router that others need are run again where *rows* lack them, and not kept.
        """
        if not rows:
            return
        wanted, best = {row.key for row in rows}, dict[int, Waits]()
        first = [row for row in self.plan.yardsticks if any(row.seed == other.seed for other in rows)]
        then = [row for row in rows if row not in first]
        with workers(jobs, on, address, most=len(rows)) as pool:
            for place, (ended, waits) in pool.run(partial(_best, scenario), first):
                row = first[place]
                if waits is not None:
                    best[row.seed] = waits
                if row.key in wanted:
                    keep(_row(row, ended))
            for place, ended in pool.run(partial(_held_against, best, scenario), then):
                keep(_row(then[place], ended))


def _row(row: Row, ended: Outcome) -> Row:
    return Row.of(row.point, row.replication, row.seed, row.settings, ended)


def _best(scenario: Scenario, row: Row) -> tuple[Outcome, Waits | None]:
    """How a run with the best router went, and how long its requests waited, for others of its seed."""
    ended, result = _played(scenario, row)
    if result is None:
        return ended, None
    waits = Waits.of(result)
    return _with(ended, imbalance(result.history) | regrets(waits, waits)), waits


def _held_against(best: Mapping[int, Waits], scenario: Scenario, row: Row) -> Outcome:
    """How another run went, held against the *best* of its seed."""
    ended, result = _played(scenario, row)
    if result is None:
        return ended
    return _with(ended, imbalance(result.history) | regrets(Waits.of(result), best.get(row.seed)))


def _with(ended: Outcome, more: Mapping[str, float | None]) -> Outcome:
    return evolve(ended, summary={**(ended.summary or {}), **more})


def _played(scenario: Scenario, row: Row) -> tuple[Outcome, Result | None]:
    """How *row* went; the result is None where it failed."""
    results: list[Result] = []

    def play(chosen: Scenario, on_end: Callable[[], None]) -> Result:
        results.append(simulate(chosen, on_end))
        return results[0]

    ended = outcome(scenario, row.changes, play)
    return ended, None if ended.summary is None else results[0]
