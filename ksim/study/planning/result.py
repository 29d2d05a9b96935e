"""The answer of `ksim.plan`: a sentence, the assumptions, the finalists, and what would change it.

docs/plan.md explains each key of the document that plan.json holds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from ksim.foundation.errors import MissingExtra
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.answer import milliseconds, named
from ksim.study.capacity.result import finite, plain_value
from ksim.study.capacity.targets import Interval, Target
from ksim.study.capacity.traffic import Traffic, replicated
from ksim.study.capacity.trial import Criteria
from ksim.study.planning.race import Finalist
from ksim.study.planning.ranking import Option, dominates
from ksim.views.tables import Table, markdown, notebook
from ksim.views.wording import OBJECTIVES, number

if TYPE_CHECKING:
    import pandas

    from ksim.views.figures import Picture


@frozen
class Change:
    """Another load than that which was asked for (`what`), and what the best deployment needs for it."""

    what: str
    gpus: int | None


@define(eq=False, slots=False)
class DeploymentPlan:
    """The best deployment for a `rate`: `finalists` were simulated, the best one first, and `options` are estimates.

    `candidates` were looked at; of others, `left_out` says why they cannot be.  `assumptions` are what the answer takes
    for granted, and `changes` what would change it.  Where there are no options, `fastest` has the least seconds of
    each target, with one request at a time.
    """

    title: str
    criteria: Criteria = field(repr=False)
    rate: float
    tokens: float
    objectives: tuple[str, ...]
    candidates: int
    left_out: Mapping[str, int] = field(repr=False)
    options: Sequence[Option] = field(repr=False)
    finalists: Sequence[Finalist] = field(repr=False)
    assumptions: Sequence[str] = field(repr=False)
    changes: Sequence[Change] = field(repr=False)
    runs: int = 0
    fastest: Mapping[Target, float] = field(factory=dict, repr=False)

    @property
    def best(self) -> Finalist | None:
        """The best finalist; None where none keeps the targets."""
        return self.finalists[0] if self.finalists and self.finalists[0].stands else None

    @property
    def front(self) -> list[Finalist]:
        """The finalists that carry the rate and cost less, by some objective, than each other that does."""
        stands = [one for one in self.finalists if one.stands]
        return [one for one in stands
                if not any(dominates(other.costs, one.costs, self.objectives) for other in stands)]

    @cached_property
    def sentence(self) -> str:
        """The answer in one sentence."""
        best = self.best
        if best is None:
            return self._none()
        assert best.point, "the best finalist was simulated"
        latencies = ", ".join(f"{named(target)} {_between(*best.point.values[target])}" for target in
                              self.criteria.targets)
        pools = best.setup.settings.get("pools")
        count = "" if pools else f"{best.replicas} replica{'s' * (best.replicas > 1)} of "
        return (f"{best.gpus:,} GPU{'s' * (best.gpus > 1)} in {count}{best.setup.name} carry {self.rate:g} requests/s:"
                f" {latencies}{self._price(best)}{self._choice(best)}")

    def _choice(self, best: Finalist) -> str:
        """Why *best* was chosen, where there are several objectives."""
        if len(self.objectives) == 1:
            return ""
        names, others = [OBJECTIVES[name] for name in self.objectives], self.front
        if len(others) == 1:
            return f"; none of {len(self.finalists)} finalists has less {' or '.join(names)}"
        least = ", ".join(f"the least {OBJECTIVES[name]} is {number(min(one.costs[name] for one in others))}, it has"
                          f" {number(best.costs[name])}" for name in self.objectives)
        return f"; chosen of {len(others)} on the front for the least product of {' and '.join(names)}: {least}"

    def _price(self, best: Finalist) -> str:
        hourly = best.costs.get("usd")
        if hourly is None:
            return f", {number(best.costs['joules'])} J/output token"
        per_million = 1e6 * hourly / 3600 / self.tokens
        return f", ${number(hourly)} an hour, ${number(per_million)} per million output tokens"

    def _none(self) -> str:
        if not self.options:
            missed = [f"with one request at a time, {named(target)} is {milliseconds(value)} on the fastest; allow more"
                      for target, value in self.fastest.items() if value > target.limit]
            return (f"none of {self.candidates:,} candidates carries {self.rate:g} requests/s within"
                    f" {' and '.join(map(str, self.criteria.targets))}, by estimates:"
                    f" {', and '.join(missed) or 'there are too few GPUs; allow more of them, or name others'}")
        tried = "; ".join(f"{one.setup.name}: {one.problem}" for one in self.finalists[:2])
        return f"none of {len(self.finalists)} finalists carries {self.rate:g} requests/s: {tried}"

    @property
    def table(self) -> Table:
        """The finalists: their places by estimate and by simulation, what they cost, and why the others lose."""
        targets, objectives = self.criteria.targets, self._shown
        places = {id(option): place for place, option in enumerate(self.options, 1)}
        table = Table.of(">#", ">estimated #", "deployment", ">replicas", ">GPUs",
                         *(f">{OBJECTIVES[name]}" for name in objectives), *(f">{target}" for target in targets),
                         ">estimated", "why not", hide=("why not", "estimated", "replicas"))
        for place, one in enumerate(self.finalists, 1):
            values = one.point.values if one.point else {}
            table.add_row(
                str(place), str(places[id(one.option)]), one.setup.name, str(one.replicas), f"{one.gpus:,}",
                *(number(one.costs[name]) if name in one.costs else "" for name in objectives),
                *(_between(*values[target]) if target in values else "" for target in targets),
                ", ".join(milliseconds(one.option.values[target]) for target in targets), self._why(one))
        return table

    @property
    def _shown(self) -> tuple[str, ...]:
        known = self.best.costs if self.best else {}
        return tuple(name for name in OBJECTIVES if name != "gpus" and name in known)

    def _why(self, one: Finalist) -> str:
        best = self.best
        if one is best or best is None:
            return one.problem
        if not one.stands:
            return one.problem
        if len(self.objectives) > 1 and any(one is other for other in self.front):
            return f"on the front: {', '.join(self._beside(one, best))}"
        for name in (*self.objectives, "joules"):
            more = one.costs[name] / best.costs[name] - 1 if best.costs[name] else 0.0
            if more > 0:
                return f"{more:.0%} more {OBJECTIVES[name]}" if more >= 0.005 else f"hardly more {OBJECTIVES[name]}"
        return "targets are closer"

    def _beside(self, one: Finalist, best: Finalist) -> Iterator[str]:
        """How much more or less of each objective *one* costs than the *best*."""
        for name in self.objectives:
            more = one.costs[name] / best.costs[name] - 1
            yield f"{abs(more):.0%} {'more' if more > 0 else 'less'} {OBJECTIVES[name]}"

    @property
    def errors(self) -> dict[str, float]:
        """By target, the median error of estimates beside simulations of as many replicas, as a share."""
        pairs = [(one.option.values[target], one.guessed.values[target][0], str(target)) for one in self.finalists
                 if one.guessed for target in one.guessed.values]
        return {name: median(abs(guess / value - 1) for guess, value, key in pairs if key == name and value > 0)
                for name in dict.fromkeys(key for *_, key in pairs)}

    @property
    def remarks(self) -> list[str]:
        """What to know of the answer, a line each."""
        lines = [f"assumed {text}" for text in self.assumptions]
        best = self.best
        if best is not None and best.binds is not None:
            less = f"; {best.setup.gpus * (best.replicas - 1):,} GPUs are too few" if best.fewer else ""
            lines.append(f"{best.binds} binds{less}")
        said = [f"{change.what}: {'no number of GPUs' if change.gpus is None else f'{change.gpus:,} GPUs'}"
                for change in self.changes]
        lines += [f"by estimates, {'; '.join(said)}"] if said else []
        off = ", ".join(f"{name} {error:.0%}" for name, error in self.errors.items())
        lines.append(f"estimated {self.candidates:,} candidates, simulated {len(self.finalists)}"
                     f"{f'; estimates of these are off by {off} on the median' if off else ''}")
        if self.left_out:
            lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in self.left_out.items()))
        return [f"* {line}" for line in lines]

    @cached_property
    def text(self) -> str:
        """The sentence, the finalists, and what to know of them, in Markdown."""
        return "\n".join([self.sentence, "", *markdown(self.table), "", *self.remarks])

    @property
    def best_scenario(self) -> Scenario | None:
        """The scenario of the best deployment at the rate; ``ksim run`` plays it."""
        best = self.best
        if best is None or best.setup.scenario is None:
            return None
        made = replicated(best.setup.scenario, best.replicas)
        return evolve(made, workload=Traffic.of(made.workload, self.criteria.count).at(self.rate))

    @property
    def document(self) -> dict[str, Any]:
        """All of it, as plan.json has it."""
        criteria, ended = self.criteria, {id(one.option): one for one in self.finalists}
        return {
            "sentence": self.sentence, "scenario": self.title, "rate": self.rate,
            "targets": [str(target) for target in criteria.targets], "minimize": list(self.objectives),
            "confidence": criteria.confidence, "seed": criteria.seed, "runs": self.runs,
            "candidates": self.candidates, "left_out": dict(self.left_out), "assumptions": list(self.assumptions),
            "changes": [{"what": change.what, "gpus": change.gpus} for change in self.changes],
            "estimate_errors": self.errors, "best": self.best.setup.name if self.best else None,
            "front": [one.setup.name for one in self.front],
            "finalists": [_finalist(one) for one in self.finalists],
            "options": [{**_option(option), "simulated": id(option) in ended} for option in self.options],
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each option that can carry the rate, by estimates; raises MissingExtra without pandas."""
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "plan.to_pandas()")
        import pandas

        return pandas.json_normalize([_option(option) for option in self.options])

    def plot(self) -> "Picture":
        """Each option's worst target over its limit, over what it costs; a notebook shows it."""
        from ksim.views.figures.studies import plan_chart

        return plan_chart(self.title, self.document)

    def save(self, folder: Path) -> None:
        """Write plan.json, best.toml and plots/front.png into *folder*."""
        (folder / "plan.json").write_text(json.dumps(self.document, indent=2, allow_nan=False, ensure_ascii=False)
                                          + "\n", encoding="utf-8")
        if (best := self.best_scenario) is not None:
            (folder / "best.toml").write_text(best.to_toml(), encoding="utf-8")
        if self.options:
            (folder / "plots").mkdir(exist_ok=True)
            self.plot().save(folder / "plots" / "front.png")

    def _repr_html_(self) -> str:
        return notebook(self.title, self.sentence, *([self.table] if self.finalists else []), *self.remarks)


def _between(value: float, interval: Interval) -> str:
    """Such as "914 ms (820 to 1,010)"."""
    if not isfinite(value):
        return "growing"
    shown = milliseconds(value)
    if not (isfinite(interval.low) and isfinite(interval.high)) or interval.high <= interval.low:
        return shown
    scale = 1e3 if shown.endswith("ms") else 1.0
    return f"{shown} ({number(scale * max(0.0, interval.low))} to {number(scale * interval.high)})"


def _option(option: Option) -> dict[str, Any]:
    return {"name": option.name, "gpu": option.gpu, "settings": plain_value(option.settings),
            "replicas": option.replicas,
            "gpus": option.gpus, "costs": dict(option.costs), "watts": option.watts,
            "seconds": {str(target): finite(value) for target, value in option.values.items()}}


def _finalist(one: Finalist) -> dict[str, Any]:
    values: Mapping[Target, tuple[float, Interval]] = one.point.values if one.point else {}
    return {"name": one.setup.name, "settings": plain_value(one.setup.settings),
            "replicas": one.replicas, "gpus": one.gpus,
            "stands": one.stands, "problem": one.problem or None, "costs": dict(one.costs),
            "estimated": _option(one.option),
            "seconds": {str(target): {"value": finite(value),
                                      "interval": [finite(between.low), finite(between.high)]}
                        for target, (value, between) in values.items()},
            "replications": one.point.replications if one.point else 0,
            "numbers": {key: finite(value) for key, value in one.point.numbers.items()} if one.point else {}}
