"""Compare routers, in Python.

The runs of a comparison: first those with the best router, then others, each held against the one of its seed.

The result of a comparison of routers: a table, a figure, and what a notebook shows.

What tells routers apart, and a run's summary does not: the engines' imbalance, and regret against another run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import Factory, define, evolve, field, frozen

from ksim.results.history import History
from ksim.results.steps import Floats, Ints, sums
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.directory import StudyDirectory
from ksim.study.grid import Outcome, outcome
from ksim.study.routers.plan import RoutersPlan
from ksim.study.routers.telling import age, explained, notes, ranked, router_of, shown
from ksim.study.rows import Row, SweepPoint
from ksim.study.sweep import Sweep, check_names, run_into
from ksim.study.workers import PROCESSES, check, workers
from ksim.views.result import Result
from ksim.views.tables import Table, as_text, notebook
from ksim.views.wording import UNLIMITED

if TYPE_CHECKING:
    from ksim.views.figures import Picture


@define(eq=False, slots=False)
class RouterComparison(Sweep):
    """The `rows` of a comparison, and what they say together; the router with the least mean e2e regret comes first."""

    @classmethod
    def read(cls, directory: Path | str) -> "RouterComparison":
        """The comparison that is kept at *directory*, finished or not; raises ConfigError and DataError."""
        study = StudyDirectory.read(Path(directory))
        return cls(study.head.title, sorted(study.rows, key=lambda row: row.key), study.path)

    @property
    def ranking(self) -> list[SweepPoint]:
        """The points that went well: routers by their e2e regret with the first signals, each by its signals."""
        return ranked(self.points)

    @property
    def shown(self) -> Table:
        """What tells the routers apart, a line for each router and age of signals."""
        return shown(self.ranking)

    @property
    def notes(self) -> list[str]:
        """How many runs there are, and which routers cannot run, with the reason."""
        return [*notes(self.points)]

    @property
    def explanations(self) -> list[str]:
        """What may surprise in the table: regrets below 0, and routers that are the same at all ages."""
        return [*explained(self.ranking)]

    @property
    def text(self) -> str:
        """The table as plain text."""
        return as_text(self.shown, UNLIMITED).strip()

    def records(self) -> list[dict[str, Any]]:
        """A table of all points: router, age of signals, means and half widths of all numbers; None if unknown."""
        return [{"router": router_of(point), "age": age(point),
                 **{key: None if isinstance(value, float) and math.isnan(value) else value
                    for key, value in point.record().items() if key not in point.settings}} for point in self.points]

    def plot(self, *keys: Any, **more: Any) -> "Picture":
        """What tells the routers apart, side by side; with arguments, as `Sweep.plot`."""
        if keys or more:
            return super().plot(*keys, **more)
        from ksim.study.routers.telling import picture

        return picture(self.title, self.ranking)

    def _repr_html_(self) -> str:
        return notebook(self.title, self.shown, *self.notes, *self.explanations)


@frozen(eq=False)
class Waits:
    """How long each request of a run waits for its first token (TTFT) and its last (`e2e`), in seconds.

    They stand by ids in rising order; nan for requests without a token.
    """

    ids: Ints
    ttft: Floats
    e2e: Floats = field(default=Factory(lambda self: self.ttft, takes_self=True))

    @classmethod
    def of(cls, result: Result) -> "Waits":
        requests = result.history.requests
        order = np.argsort(requests.ids, kind="stable")
        return cls(requests.ids[order], requests.ttft[order], requests.e2e[order])

    def regret(self, best: "Waits", until: str = "ttft") -> Floats:
        """How much longer each request waits than in the run with the *best* router, of those served in both."""
        _, own, others = np.intersect1d(self.ids, best.ids, assume_unique=True, return_indices=True)
        longer: Floats = getattr(self, until)[own] - getattr(best, until)[others]
        return longer[~np.isnan(longer)]


#: The names of regrets, by what is waited for.
REGRETS = {"ttft": "regret", "e2e": "latency_regret"}


def regrets(own: Waits, best: Waits | None) -> dict[str, float | None]:
    """The mean regrets and their 99th percentiles in ms; None where nothing is known of the *best* router."""
    numbers: dict[str, float | None] = {}
    for until, name in REGRETS.items():
        longer = own.regret(best, until) if best is not None else np.zeros(0)
        numbers[f"mean_{name}_ms"] = 1e3 * float(longer.mean()) if len(longer) else None
        numbers[f"p99_{name}_ms"] = 1e3 * float(np.percentile(longer, 99)) if len(longer) else None
    return numbers


def imbalance(history: History) -> dict[str, float | None]:
    """How unequal the tokens are that engines of one pool compute, in the pool where they are most unequal.

    That is their standard deviation over their mean (coefficient of variation), and the largest over their mean.  Both
    are None where no pool has two engines.  Tokens that a cache holds are not computed.
    """
    pools = [tokens for tokens in _by_pool(history) if len(tokens) > 1 and tokens.any()]
    ends = [(float(tokens.std() / tokens.mean()), float(tokens.max() / tokens.mean())) for tokens in pools]
    spread, most = max(ends, default=(None, None))
    return {"engine_tokens_cv": spread, "engine_tokens_max_over_mean": most}


def _by_pool(history: History) -> Iterator[Floats]:
    tokens = sums(history.steps.engine, history.steps.tokens, len(history.engines))
    for pool in np.unique(history.pool):
        yield tokens[history.pool == pool]


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


def routers(scenario: Scenario | str | Path, routers: str | Sequence[str] = (), staleness: Sequence[Any] = (),
            seeds: int = 1, jobs: int | None = None, on: str = PROCESSES, output: Path | str | None = None,
            resume: bool = False, force: bool = False, address: str | None = None) -> RouterComparison:
    """Run *scenario* with each of *routers*, by default all that there are, under the same requests.

    A router is "name" or "name:option=value".  Those that act on what they see of engines run once for each
    *staleness*, such as ``[0, "50ms"]``, by default that of the scenario, and all run once for each of so many *seeds*.
    Each run is held against that of its seed in which `omniscient` routes.  Runs are computed in *jobs* processes, by
    default one per CPU, or *on* "ray".  With *output*, every run is kept there as it ends, and *resume* goes on with
    what is there.  A router that cannot run is a row with its problem.  Raises KsimError for what no run can have.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = RoutersPlan.of(scenario, [routers] if isinstance(routers, str) else routers, staleness, seeds)
    check(on, address)
    check_names(scenario, plan.points)
    path = None if output is None else Path(output)
    return compare(plan, f"Routers compared: {Path(scenario.model).name}", path, resume, force, jobs=jobs, on=on,
                   address=address)


def compare(plan: RoutersPlan, title: str, output: Path | None = None, resume: bool = False, force: bool = False,
            on_end: Callable[[], None] = lambda: None, **where: Any) -> RouterComparison:
    """Run *plan*, in a directory of its own if there is an *output*; `on_end` is called for each run that ends."""
    run, ended = AgainstTheBest(plan), list[Row]()
    if output is not None:
        with plan.study(output, title, resume, force) as study:
            run_into(study, plan.scenario, plan.rows, on_end, run=run, **where)
        return RouterComparison.read(output)

    def keep(row: Row) -> None:
        ended.append(row)
        on_end()

    run(plan.scenario, plan.rows, keep, **where)
    return RouterComparison(title, sorted(ended, key=lambda row: row.key))
