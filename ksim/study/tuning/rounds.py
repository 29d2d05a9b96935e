"""Rounds: trials are asked for, computed side by side, and told in order; so no number of workers changes anything.

This module needs Optuna.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, frozen

from ksim.simulation.scenario import Scenario
from ksim.simulation.scenario_tables import native
from ksim.study.grid import Outcome, outcome
from ksim.study.means import SweepPoint, points_of
from ksim.study.rows import STOPPED, Row
from ksim.study.tuning.lessons import AT_STOP, Lesson, lesson_of
from ksim.study.tuning.plan import TunePlan
from ksim.study.tuning.search import Search
from ksim.study.tuning.watch import Limit, Watch
from ksim.study.workers import Workers


@frozen
class Played:
    """A run and, where it was stopped or would have been, what was known by then."""

    outcome: Outcome
    at_stop: Mapping[str, float | None] | None
    stopped: bool

    def row(self, asked: Row) -> Row:
        """The row of the run that was *asked* for."""
        row = Row.of(asked.point, asked.replication, asked.seed, asked.settings, self.outcome)
        if self.at_stop is None:
            return row
        told = {f"{AT_STOP}{key}": value for key, value in self.at_stop.items()}
        return evolve(row, status=STOPPED if self.stopped else row.status, numbers={**row.numbers, **told})


@frozen
class Trial:
    """A trial that has ended: its `point`, with all replications, and what the sampler was told of it."""

    point: SweepPoint
    lesson: Lesson


def play(scenario: Scenario, limits: Sequence[Limit], keys: Sequence[str], prune: bool, changes: Mapping[str, Any]
         ) -> Played:
    """Run *scenario* with *changes*; with *prune*, not to its end where it is certain to miss one of *limits*."""
    watch = Watch(limits, keys, prune)
    ended = outcome(scenario, changes, watch.play)
    return Played(ended, watch.at_stop, watch.at_stop is not None and prune)


@frozen
class Rounds:
    """The rounds of a tuning after `plan`.

    Runs that are `known` are not computed again.  `keep` is told of each other run as it ends, `asked` of the runs of a
    round before they are computed.
    """

    plan: TunePlan
    pool: Workers
    known: Mapping[tuple[int, int], Row]
    keep: Callable[[Row], None]
    asked: Callable[[Sequence[Row]], None]

    def run(self, trials: int) -> Iterator[list[Trial]]:
        """Yield the trials of each round, until there were so many *trials*, or no point is left."""
        plan = self.plan
        search = Search.of(plan.space, plan.sampler, plan.seed, plan.directions)
        told = 0
        while told < trials:
            settings = search.ask(min(plan.round, trials - told))
            if not settings:
                return
            ended = self._round([plan.rows(told + place, chosen) for place, chosen in enumerate(settings, 1)])
            for number, trial in enumerate(ended, told):
                search.tell(number, trial.lesson)
            told += len(ended)
            yield ended

    def _round(self, rows: Sequence[Sequence[Row]]) -> list[Trial]:
        """The trials with these *rows*, computed where they are not known."""
        flat = [row for replications in rows for row in replications]
        ended = {row.key: known for row in flat if (known := self._known(row)) is not None}
        left = [row for row in flat if row.key not in ended]
        self.asked(left)
        work = partial(play, self.plan.scenario, self.plan.limits, self.plan.keys, self.plan.prune)
        for place, played in self.pool.run(work, [row.changes for row in left]):
            row = played.row(left[place])
            self.keep(row)
            ended[row.key] = row
        return [Trial(point, lesson_of(point, self.plan)) for point in points_of([*ended.values()])]

    def _known(self, row: Row) -> Row | None:
        """The run of *row* if it was computed before."""
        known = self.known.get(row.key)
        return known if known is not None and known.settings == native(row.settings, "settings") else None
