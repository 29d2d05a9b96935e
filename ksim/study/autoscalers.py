"""Autoscalers on one load: what each costs, how far it keeps the SLO, and its regret beside the perfect one.

*Regret* is what an autoscaler costs more than the perfect one (`ksim.study.perfect`), which knows the load to come and
keeps the SLO: dollars, or GPU-hours where GPUs have no price.  An autoscaler whose settings are varied has a run for
each combination of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.results.numbers import OF_AUTOSCALERS, number_of
from ksim.scenario.scenario import Scenario, put
from ksim.study.experiment import problem_of
from ksim.study.grid import Range, Settings, SettingValues, axes_of, check_keys, combinations, short_names, value_text
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
#: More autoscalers than these are not compared, and of more than `_DRAWN` the first ones are drawn.
_MOST, _DRAWN = 256, 9


@frozen
class AutoscalerRun:
    """An autoscaler by its `name`, its `scenario`, and its run.  `settings` are those that were varied, by their keys.
    """

    name: str
    scenario: Scenario
    kept: ScaledRun
    settings: Settings = field(factory=dict)

    @property
    def changes(self) -> int:
        """How often it has asked for another size."""
        return sum(map(len, self.kept.asked.values()))


@frozen(eq=False)
class AutoscalerComparison:
    """The `runs` of autoscalers, the perfect one first, and others by cost, those that keep the SLO before others.

    `share` of the requests have to keep their targets for that.  `refused` says why combinations of settings, by their
    names, cannot be.
    """

    title: str
    share: float
    runs: Sequence[AutoscalerRun] = field(repr=False)
    simulated: int
    refused: Mapping[str, str] = field(factory=dict)

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
    def varied(self) -> bool:
        """Whether settings were."""
        return any(run.settings for run in self.runs)

    @property
    def best(self) -> AutoscalerRun | None:
        """The cheapest one that keeps the SLO and does not know the load to come; None where none does."""
        return next(filter(self.keeps, self.runs[1:]), None)

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
        """How many runs there were, what the perfect one is, and, where settings are varied, which are best."""
        missed = [run.name for run in self.runs if not self.keeps(run)]
        told = f"{len(missed)} of {len(self.runs) - 1} autoscalers" if self.varied else ", ".join(missed)
        late = f"; {told} cost what they do without keeping the SLO" if missed else ""
        return [f"{self.simulated} runs; the SLO is kept where {percent(self.share)} of the requests keep their"
                f" targets{late}",
                f"{PERFECT} knows the load to come, and is the cheapest of {self.simulated - len(self.runs) + 1}"
                " schedules that were simulated",
                *(f"{name} is left out: {problem}" for name, problem in self.refused.items()),
                *([self._verdict] if self.varied else [])]

    @property
    def _verdict(self) -> str:
        """Which settings are best, or come closest."""
        count = len(self.runs) - 1
        if (best := self.best) is None:
            near = max(self.runs[1:], key=lambda run: run.kept.share)
            return (f"none of {count} autoscalers keeps the SLO; {near.name} comes closest, with"
                    f" {percent(near.kept.share)}")
        cost = f"${number(best.kept.cost)}" if self.unit == "$" else f"{number(best.kept.cost)} {self.unit}"
        return (f"{best.name} is the cheapest that keeps the SLO, of {count} autoscalers: {cost},"
                f" {number(self.regret(best))} more than {PERFECT}")

    @property
    def text(self) -> str:
        """The table as plain text."""
        return as_text(self.shown, UNLIMITED).strip()

    def records(self) -> list[dict[str, Any]]:
        """What each costs and keeps, its settings, and the sizes that it asked for: [seconds, replicas] by pool."""
        return [{"autoscaler": run.name, **({"settings": dict(run.settings)} if self.varied else {}),
                 "slo_attainment": run.kept.share, "keeps_slo": self.keeps(run),
                 "cost": run.kept.cost, "regret": self.regret(run), "unit": self.unit, "decisions": run.changes,
                 **{key: run.kept.summary[key] for key in OF_AUTOSCALERS},
                 "sizes": {name: [[0.0, run.scenario.pools[name].replicas], *map(list, steps)]
                           for name, steps in run.kept.asked.items()}} for run in self.runs]

    def plot(self) -> "Picture":
        """The load, and the replicas that each autoscaler asked for over time, a panel for each pool.

        Where settings are varied, it is those of the first few rows.
        """
        from ksim.views.figures.scaling import autoscalers_chart

        shown = self.records()[:_DRAWN] if self.varied else self.records()
        return autoscalers_chart(self.title, self.perfect.kept.arrivals, shown)

    def _repr_html_(self) -> str:
        return notebook(self.title, self.shown, *self.notes)


def candidate(scenario: Scenario, choice: Choice) -> Scenario:
    """*scenario* whose pools are all scaled by *choice*, each as far as it did."""
    pools = {name: evolve(pool, autoscaler=None) if scenario.autoscaler_of(name) else pool
             for name, pool in scenario.pools.items()}
    return evolve(scenario, pools=pools, autoscaler=choice)


def with_options(scenario: Scenario, settings: Settings) -> Scenario:
    """*scenario* whose autoscalers have other *settings*, by their names and the keys behind; raises ConfigError."""
    def changed(choice: Choice | None) -> Choice | None:
        own = {rest: value for key, value in settings.items() if choice and (rest := _option(choice, key))}
        if choice is None or not own:
            return choice
        table = {"name": choice.name, **plain(choice.options)}
        for rest, value in own.items():
            try:
                put(table, rest, value)
            except ConfigError as error:
                raise ConfigError("--over", f"{choice.name}.{error}") from None
        return Choice.of(table)

    pools = {name: evolve(pool, autoscaler=changed(pool.autoscaler)) for name, pool in scenario.pools.items()}
    return evolve(scenario, pools=pools, autoscaler=changed(scenario.autoscaler))


def _option(choice: Choice, key: str) -> str:
    """What *key* sets of *choice*, such as a.b of name.a.b; "" where it is of another autoscaler."""
    return key.removeprefix(f"{choice.name}.") if key.startswith(f"{choice.name}.") else ""


def _least(scenarios: Iterable[Scenario]) -> int:
    """The fewest replicas that the perfect one may have: 0 where any of its rivals may, else 1."""
    choices = {choice for one in scenarios for name in one.pools if (choice := one.autoscaler_of(name))}
    return min(min(1, getattr(plugin("autoscaling", choice), "min_replicas", 1)) for choice in choices)


@frozen
class AutoscalerCandidate:
    """An autoscaler with these `settings` of those that are varied, by its `name` and that of the one it is `of`.

    `problem` says why its `scenario` cannot be built.
    """

    of: str
    name: str
    scenario: Scenario
    settings: Settings
    problem: str


@frozen
class AutoscalersPlan:
    """Which autoscalers are compared on `scenario`: its own, and `others`.

    `share` of the requests have to keep their targets.  The perfect one may change sizes in each of so many `slots`,
    and at most so many `trials` lower them.  `axes` are settings of autoscalers, each by a key that begins with the
    name of one: it has a run for every combination of those that are its own.
    """

    scenario: Scenario
    others: Sequence[Choice] = ()
    share: float = 0.99
    slots: int = 48
    trials: int = 48
    axes: Sequence[SettingValues | Range] = ()
    candidates: Sequence[AutoscalerCandidate] = field(init=False)

    @candidates.default
    def _candidates(self) -> list[AutoscalerCandidate]:
        self._check()
        found = [*self._combined()]
        names = [one.name for one in found]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ConfigError("--autoscalers", f"{twice} comes twice")
        for one in found:
            if one.problem and (not one.settings or all(other.problem for other in found if other.of == one.of)):
                raise ConfigError("--over" if one.settings else "--autoscalers", one.problem)
        return found

    def _check(self) -> None:
        """Raise ConfigError for options that no comparison can have."""
        if not 0 < self.share <= 1:
            raise ConfigError("--attainment", f"is {self.share:g}; expected a share above 0, at most 1")
        if not any((self.scenario.slo.ttft, self.scenario.slo.tpot, self.scenario.slo.e2el)):
            raise ConfigError("slo", "has no target, so nothing says how many replicas are enough; set slo.ttft,"
                                     " slo.tpot or slo.e2el")
        check_keys([axis.key for axis in self.axes])
        known = {choice.name: choice for choices, _ in self._given() for choice in choices}
        for axis in self.axes:
            if not any(_option(choice, axis.key) for choice in known.values()):
                raise ConfigError("--over", f"{axis.key} begins with the name of no autoscaler that is compared:"
                                            f" {', '.join(known)}")
            if isinstance(axis, Range):
                raise ConfigError("--over", f"{axis.key}: expected values with commas between, not the range {axis}")
        count = sum(prod(len(axis.values) for axis in self._own(choices)) for choices, _ in self._given())
        if count > _MOST:
            raise ConfigError("--over", f"makes {count:,} autoscalers, each of which is a run, and at most {_MOST} are"
                                        " compared; list fewer values")

    def _given(self) -> Iterator[tuple[tuple[Choice, ...], Scenario]]:
        """The autoscalers as they are given, those of the scenario first, each with the scenario in which it is."""
        own = tuple(dict.fromkeys(filter(None, map(self.scenario.autoscaler_of, scaled_pools(self.scenario)))))
        yield own, self.scenario
        for choice in self.others:
            yield (choice,), candidate(self.scenario, choice)

    def _own(self, choices: Iterable[Choice]) -> list[SettingValues]:
        """The settings of *choices* that are varied."""
        return [axis for axis in self.axes if isinstance(axis, SettingValues)
                and any(_option(choice, axis.key) for choice in choices)]

    def _combined(self) -> Iterator[AutoscalerCandidate]:
        """Each autoscaler, or each combination of its settings."""
        all_names = [PERFECT, *(choice.name for choices, _ in self._given() for choice in choices)]
        for choices, one in self._given():
            axes = self._own(choices)
            short = short_names([axis.key for axis in axes])
            of = "+".join(choice.name if all_names.count(choice.name) == 1 else label(plain(choice))
                          for choice in choices)
            for settings in combinations(axes):
                name = ":".join([of, *(f"{short[key]}={value_text(value)}" for key, value in settings.items())])
                made = with_options(one, settings)
                yield AutoscalerCandidate(of, name, made, settings, problem_of(made, {}))

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
            played = [one for one in self.candidates if not one.problem]
            scenarios = [one.scenario for one in played]
            search = Search.of(self.scenario, self.share, self.slots, _least(scenarios), workers, ended)
            kept = search.play(scenarios)
            best = AutoscalerRun(PERFECT, *search.find(kept, self.trials))
        others = [AutoscalerRun(one.name, one.scenario, run, one.settings)
                  for one, run in zip(played, kept, strict=True)]
        others.sort(key=lambda run: (run.kept.share < self.share, run.kept.cost))
        return AutoscalerComparison(title, self.share, [best, *others], len(runs),
                                    {one.name: one.problem for one in self.candidates if one.problem})


def autoscalers(scenario: Scenario | str | Path, others: Sequence[str | Mapping[str, Any]] = (),
                attainment: float = 0.99, slots: int = 48, trials: int = 48, jobs: int | None = None,
                over: Mapping[str, Any] | Iterable[str] = ()) -> AutoscalerComparison:
    """Compare the autoscaler of *scenario* with *others*, and with the perfect one, under the same requests.

    One of the others is a name, "name:option=value", or a table with its `name` and options.  *attainment* is the share
    of the requests that have to be within `slo`.  The perfect one may change sizes in each of so many *slots*; at most
    so many *trials* lower its sizes once they are found.  *over* has values to try of settings, as of `ksim.sweep`, by
    keys such as "wva.scaleUpThreshold": each combination is an autoscaler.  Runs are computed in *jobs* processes, by
    default one per CPU.  Raises KsimError for what cannot be run, and where the SLO is missed with all replicas all the
    time.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    chosen = [parsed(other) if isinstance(other, str) else Choice.of(other) for other in others]
    plan = AutoscalersPlan(scenario, chosen, attainment, slots, trials, axes_of(over))
    return plan.compare(f"Autoscalers compared: {Path(scenario.model).name}", Where(jobs))
