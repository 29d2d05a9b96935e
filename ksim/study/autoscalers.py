"""Autoscalers on one load: what each costs, how far it keeps the SLO, and its regret beside the perfect one.

*Regret* is what an autoscaler costs more than the perfect one (`ksim.study.perfect`), which knows the load to come and
keeps the SLO: dollars, or GPU-hours where GPUs have no price.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.results.numbers import OF_AUTOSCALERS, number_of
from ksim.scenario.scenario import Scenario
from ksim.study.experiment import problem_of
from ksim.study.perfect import MOST_PRICED, ScaledRun, Search, levels_of, scaled_pools
from ksim.study.routers import label, parsed
from ksim.study.workers import HERE, Where
from ksim.views.tables import Table, as_text, notebook
from ksim.views.wording import UNLIMITED, number, percent, written

if TYPE_CHECKING:
    from ksim.views.figures import Picture

__all__ = ["AutoscalerComparison", "AutoscalerRun", "autoscalers"]

#: The name of the one that knows the future.
PERFECT = "perfect"


@frozen
class AutoscalerRun:
    """An autoscaler by its `name`, its `scenario`, and its run."""

    name: str
    scenario: Scenario
    kept: ScaledRun

    @property
    def changes(self) -> int:
        """How often it has asked for another size."""
        return sum(map(len, self.kept.asked.values()))


@frozen(eq=False)
class AutoscalerComparison:
    """The `runs` of autoscalers, the perfect one first, and others by cost, those that keep the SLO before others.

    `share` of the requests have to keep their targets for that.  `begin` has the size of each pool at the start.
    """

    title: str
    share: float
    runs: Sequence[AutoscalerRun] = field(repr=False)
    simulated: int

    @property
    def perfect(self) -> AutoscalerRun:
        return self.runs[0]

    def keeps(self, run: AutoscalerRun) -> bool:
        """Whether *run* keeps the SLO."""
        return run.kept.share >= self.share

    def regret(self, run: AutoscalerRun) -> float:
        """What *run* costs more than the perfect one: dollars, or GPU-hours."""
        return run.kept.cost - self.perfect.kept.cost

    @property
    def unit(self) -> str:
        """The unit of costs and regrets."""
        return "GPU-hours" if self.perfect.kept.summary["gpu_dollars"] is None else "$"

    @property
    def shown(self) -> Table:
        """The table: a line for each autoscaler."""
        titles = [number_of(key).title for key in OF_AUTOSCALERS]
        rows = [(run.name, percent(run.kept.share), "yes" if self.keeps(run) else "no", number(run.kept.cost),
                 number(self.regret(run)), *(written(number_of(key), run.kept.summary[key]) for key in OF_AUTOSCALERS),  # type: ignore[arg-type]
                 number(run.changes)) for run in self.runs]
        return Table.of("autoscaler", ">within targets", "keeps SLO", f">cost, {self.unit}", f">regret, {self.unit}",
                        *(f">{title}" for title in titles), ">decisions", rows=rows,
                        hide=["decisions", *reversed(titles)])

    @property
    def notes(self) -> list[str]:
        """How many runs there were, and what the perfect one is."""
        missed = [run.name for run in self.runs if not self.keeps(run)]
        late = f"; {', '.join(missed)} cost what they do without keeping the SLO" if missed else ""
        return [f"{self.simulated} runs; the SLO is kept where {percent(self.share)} of the requests keep their"
                f" targets{late}",
                f"{PERFECT} knows the load to come, and is the cheapest of {self.simulated - len(self.runs) + 1}"
                " schedules that were simulated"]

    @property
    def text(self) -> str:
        """The table as plain text."""
        return as_text(self.shown, UNLIMITED).strip()

    def records(self) -> list[dict[str, Any]]:
        """What each costs and keeps, its settings, and the sizes that it asked for: [seconds, replicas] by pool."""
        return [{"autoscaler": run.name, "slo_attainment": run.kept.share, "keeps_slo": self.keeps(run),
                 "cost": run.kept.cost, "regret": self.regret(run), "unit": self.unit, "decisions": run.changes,
                 **{key: run.kept.summary[key] for key in OF_AUTOSCALERS},
                 "sizes": {name: [[0.0, run.scenario.pools[name].replicas], *map(list, steps)]
                           for name, steps in run.kept.asked.items()}} for run in self.runs]

    def plot(self) -> "Picture":
        """The load, and the replicas that each autoscaler asked for over time, a panel for each pool."""
        from ksim.views.figures.scaling import autoscalers_chart

        return autoscalers_chart(self.title, self.perfect.kept.arrivals, self.records())

    def _repr_html_(self) -> str:
        return notebook(self.title, self.shown, *self.notes)


def candidate(scenario: Scenario, choice: Choice) -> Scenario:
    """*scenario* whose pools are all scaled by *choice*, each as far as it did."""
    pools = {name: evolve(pool, autoscaler=None) if scenario.autoscaler_of(name) else pool
             for name, pool in scenario.pools.items()}
    return evolve(scenario, pools=pools, autoscaler=choice)


def _least(scenarios: Iterable[Scenario]) -> int:
    """The fewest replicas that the perfect one may have: 0 where any of its rivals may, else 1."""
    choices = {choice for one in scenarios for name in one.pools if (choice := one.autoscaler_of(name))}
    return min(min(1, getattr(plugin("autoscaling", choice), "min_replicas", 1)) for choice in choices)


@frozen
class AutoscalersPlan:
    """Which autoscalers are compared on `scenario`: its own, and `others`.

    `share` of the requests have to keep their targets.  The perfect one may change sizes in each of so many `slots`,
    and at most so many `trials` lower them.
    """

    scenario: Scenario
    others: Sequence[Choice] = ()
    share: float = 0.99
    slots: int = 48
    trials: int = 48

    def __attrs_post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError("--attainment", f"is {self.share:g}; expected a share above 0, at most 1")
        if not any((self.scenario.slo.ttft, self.scenario.slo.tpot, self.scenario.slo.e2el)):
            raise ConfigError("slo", "has no target, so nothing says how many replicas are enough; set slo.ttft,"
                                     " slo.tpot or slo.e2el")
        for one in self.candidates.values():
            if problem := problem_of(one, {}):
                raise ConfigError("--autoscalers", problem)

    @property
    def candidates(self) -> dict[str, Scenario]:
        """The scenario of each autoscaler by its name, that of the scenario first.

        Raises ConfigError for one that comes twice.
        """
        own = tuple(dict.fromkeys(filter(None, map(self.scenario.autoscaler_of, scaled_pools(self.scenario)))))
        all_names = [PERFECT, *(choice.name for choices in (own, self.others) for choice in choices)]
        found: dict[str, Scenario] = {}
        for choices, one in ((own, self.scenario),
                             *(((choice,), candidate(self.scenario, choice)) for choice in self.others)):
            name = "+".join(choice.name if all_names.count(choice.name) == 1 else label(plain(choice))
                            for choice in choices)
            if found.setdefault(name, one) is not one:
                raise ConfigError("--autoscalers", f"{name} comes twice")
        return found

    @property
    def most_runs(self) -> int:
        """The most runs that a comparison takes."""
        levels = sum(len(levels_of(self.scenario.pools[name].places)) for name in scaled_pools(self.scenario))
        return len(self.candidates) + levels + MOST_PRICED + self.trials

    def compare(self, title: str, where: Where = HERE, told: Callable[[], object] = lambda: None
                ) -> AutoscalerComparison:
        """Run all, and search the perfect one; *told* hears of each run.  Raises KsimError as `Search.find` does."""
        runs = list[None]()

        def ended() -> None:
            runs.append(None)
            told()

        with where.workers() as workers:
            candidates = self.candidates
            search = Search.of(self.scenario, self.share, self.slots, _least(candidates.values()), workers, ended)
            kept = search.play(list(candidates.values()))
            best = AutoscalerRun(PERFECT, *search.find(kept, self.trials))
        others = [AutoscalerRun(name, one, run) for (name, one), run in zip(candidates.items(), kept, strict=True)]
        others.sort(key=lambda run: (run.kept.share < self.share, run.kept.cost))
        return AutoscalerComparison(title, self.share, [best, *others], len(runs))


def autoscalers(scenario: Scenario | str | Path, others: Sequence[str | Mapping[str, Any]] = (),
                attainment: float = 0.99, slots: int = 48, trials: int = 48, jobs: int | None = None
                ) -> AutoscalerComparison:
    """Compare the autoscaler of *scenario* with *others*, and with the perfect one, under the same requests.

    One of the others is a name, "name:option=value", or a table with its `name` and options.  *attainment* is the share
    of the requests that have to be within `slo`.  The perfect one may change sizes in each of so many *slots*; at most
    so many *trials* lower its sizes once they are found.  Runs are computed in *jobs* processes, by default one per
    CPU.  Raises KsimError for what cannot be run, and where the SLO is missed with all replicas all the time.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    chosen = [parsed(other) if isinstance(other, str) else Choice.of(other) for other in others]
    plan = AutoscalersPlan(scenario, chosen, attainment, slots, trials)
    return plan.compare(f"Autoscalers compared: {Path(scenario.model).name}", Where(jobs))
