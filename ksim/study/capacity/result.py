"""The result of `ksim.capacity`: one sentence, a table, a figure, and the document that capacity.json holds.

docs/capacity.md explains each key of the document.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from ksim.foundation.errors import MissingExtra
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.answer import COSTS, Standing, closest, milliseconds, unreached
from ksim.study.capacity.judge import Light, RateAnswer
from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import FEWEST, Interval, Target
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Criteria
from ksim.views.tables import Table, markdown, notebook
from ksim.views.wording import DOWN, model_name, number, outwards

if TYPE_CHECKING:
    import pandas

    from ksim.views.figures import Picture


def set_ups(standings: Sequence[Standing], rate: float | None) -> list[dict[str, Any]]:
    """The set-ups as capacity.json has them, the best first."""
    return [_standing(one, rate) for one in standings]


def _standing(one: Standing, rate: float | None) -> dict[str, Any]:
    between = None if rate is None else one.gpus_between(rate)
    return {
        "name": one.setup.name, "settings": {key: plain_value(value) for key, value in one.setup.settings.items()},
        "stands": one.stands, "problem": one.problem, "replicas": one.replicas or None, "gpus": one.gpus or None,
        "gpus_interval": None if between is None else list(between), "gpus_per_replica": one.setup.gpus or None,
        **{key: one.cost(key) for key in COSTS},
        "binds": str(one.binds) if one.binds else None,
        "point": _point(one.point) if one.point else None, "points": [_point(point) for point in one.points],
        "highest_rate": _answer(one.answer) if one.answer else None,
        "light": _light(one.light) if one.light else None,
    }


def _point(point: RatePoint) -> dict[str, Any]:
    return {
        "rate": point.rate, "replications": point.replications, "hopeless": point.hopeless,
        "saturated": point.saturated, "meets": point.meets, "goodput": _estimate(point.goodput),
        "targets": {str(target): {"attainment": _estimate(point.attainment[target]), "seconds":
                    _estimate(point.values[target])} for target in point.values},
        "numbers": {key: finite(value) for key, value in point.numbers.items()},
    }


def _answer(answer: RateAnswer) -> dict[str, Any]:
    return {
        "rate": answer.rate, "interval": _interval(answer.interval), "traffic": _interval(answer.traffic),
        "model": _interval(answer.model) if answer.model else None, "model_share": answer.model_share,
        "binds": str(answer.binds) if answer.binds else None,
    }


def _light(light: Light) -> dict[str, Any]:
    return {"seconds": {str(target): finite(value) for target, value in light.values.items()},
            "missed": [str(target) for target in light.missed], "bounds": dict(light.bounds)}


def _estimate(estimate: tuple[float, Interval]) -> dict[str, Any]:
    value, interval = estimate
    return {"value": finite(value), "interval": _interval(interval)}


def _interval(interval: Interval) -> list[float | None]:
    return [finite(interval.low), finite(interval.high)]


def finite(value: float) -> float | None:
    """A number for JSON, which has no infinity: None for what is not known."""
    return value if isfinite(value) else None


def plain_value(value: Any) -> Any:
    """The value of a setting for JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    return value if isinstance(value, bool | int | float | str) else str(value)


def _subject(title: str, standings: Sequence[Standing]) -> str:
    """The subject of the figure: the models of the set-ups, or else the *title*."""
    models = dict.fromkeys(model_name({"model_id": one.setup.scenario.model}) for one in standings
                           if one.setup.scenario)
    return ", ".join(models) or title


def sentence(standings: Sequence[Standing], rate: float | None, confidence: float) -> str:
    """The answer in one sentence: the GPUs that the best set-up needs for *rate*, or the rate that it carries.

    It ends with the interval.  If no set-up keeps the targets, the sentence names the one that comes closest.
    """
    best = standings[0]
    if not best.stands:
        return _none_stands(standings)
    sure = f"{100 * confidence:g} %"
    answer = _carries(best, sure) if rate is None else _needs(best, rate, sure)
    return f"{answer}{_width(best.answer)}"


def _needs(best: Standing, rate: float, sure: str) -> str:
    """Such as "12 GPUs (3 replicas of TP4); 95 %: 11 to 14"."""
    between = best.gpus_between(rate)
    needed = f"{_gpus(best.gpus)} ({_replicas(best)}) for {rate:g} requests/s"
    if between is None:
        return needed
    if between == (best.gpus, best.gpus):
        assert best.answer, "an interval comes from a search"
        carry = "carries" if best.gpus == 1 else "carry"
        return f"{needed}; {sure}: {best.gpus}, which {carry} up to {rates_text(best.answer.interval)} requests/s"
    return f"{needed}; {sure}: {gpus_text(between)}"


def _carries(best: Standing, sure: str) -> str:
    assert best.answer, "without a rate, set-ups are searched for their highest one"
    return (f"{number(best.answer.rate)} requests/s on {_gpus(best.gpus)} ({_replicas(best)}); {sure}:"
            f" {rates_text(best.answer.interval)}")


def _width(answer: RateAnswer | None) -> str:
    """Which part of the interval's width is the model's error."""
    if answer is None or answer.interval.high <= answer.interval.low:
        return ""
    if answer.interval.high == inf:
        return f", as there are too few replications; {FEWEST} or more tell it" if answer.interval.low <= 0 else ""
    if answer.model is None:
        return "; all of the width is traffic, as errors of the model were left out"
    tenths = round(10 * answer.model_share)
    if tenths in (0, 10):
        return f"; nearly all of the width is {'the model' + chr(39) + 's error' if tenths else 'traffic'}"
    return f"; of the width {tenths}/10 is the model's error, the rest traffic"


def _none_stands(standings: Sequence[Standing]) -> str:
    near = closest(standings)
    if near is None or near.light is None:
        return f"no set-up keeps the targets: {standings[0].problem}"
    why = unreached(near.light) if near.light.missed else near.problem
    return (f"no set-up keeps the targets; {near.setup.name} comes closest: {why}" if len(standings) > 1 else
            f"{near.setup.name} does not keep the targets: {why}")


def _replicas(best: Standing) -> str:
    return best.setup.name if best.replicas == 1 else f"{best.replicas} replicas of {best.setup.name}"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count:,} GPUs"


def gpus_text(between: tuple[int, int | None] | None) -> str:
    """An interval of GPUs, such as "11 to 14"; "" where there is none."""
    if between is None:
        return ""
    low, high = between
    return f"{low} or more" if high is None else f"{low} to {high}" if high > low else f"{low}"


def rates_text(interval: Interval) -> str:
    """An interval of rates, such as "9.1 to 12.4"; "unknown" where there are too few replications for one."""
    if interval.low <= 0 and interval.high == inf:
        return "unknown"
    if interval.high == inf:
        return f"{number(interval.low, DOWN)} or more"
    return outwards(interval.low, interval.high)


#: Where there is no room, these columns are left out, the first one first.
_HIDE = (COSTS["joules_per_million_tokens"], COSTS["usd_per_million_tokens"], "rate, 95 %", "per GPU", "GPUs, 95 %",
         COSTS["joules_per_output_token"], "goodput", "replicas", "binds")


def table(standings: Sequence[Standing], targets: Sequence[Target], rate: float | None) -> Table:
    """A row for each set-up that keeps the targets, the best first; columns that would be empty are left out."""
    standing = [one for one in standings if one.stands]
    texts = {name: [cell(one) for one in standing] for name, cell in _cells(targets, rate).items()}
    shown = {name: column for name, column in texts.items() if any(column)}
    return Table.of(*shown, rows=zip(*shown.values(), strict=True), hide=_HIDE)


def _cells(targets: Sequence[Target], rate: float | None) -> dict[str, Callable[[Standing], str]]:
    """The columns by name, which begins with ">" for numbers, and the text of a set-up's cell."""
    sizes: dict[str, Callable[[Standing], str]] = {
        ">GPUs, 95 %": lambda one: gpus_text(one.gpus_between(rate)), ">replicas": lambda one: f"{one.replicas:,}",
    } if rate is not None else {}
    return {
        "set-up": lambda one: one.setup.name,
        ">GPUs": lambda one: f"{one.gpus:,}",
        **sizes,
        ">highest rate": lambda one: number(one.answer.rate) if one.answer else "",
        ">rate, 95 %": _rates,
        ">per GPU": lambda one: "" if one.rate_per_gpu is None else number(one.rate_per_gpu),
        **{f">{title}": _cost(key) for key, title in COSTS.items()},
        ">goodput": lambda one: number(one.point.goodput[0]) if one.point else "",
        **{f">{target}": _value(target) for target in targets},
        "binds": _binds,
    }


def _binds(one: Standing) -> str:
    """The target that a higher rate would miss first."""
    return str(one.binds) if one.binds else "backlog" if one.answer else ""


def _rates(one: Standing) -> str:
    return rates_text(one.answer.interval) if one.answer else ""


def _cost(key: str) -> Callable[[Standing], str]:
    return lambda one: "" if (cost := one.cost(key)) is None else number(cost)


def _value(target: Target) -> Callable[[Standing], str]:
    return lambda one: milliseconds(one.point.values[target][0]) if one.point and target in one.point.values else ""


@define(eq=False, slots=False)
class Capacity:
    """The answer to how much load some set-ups carry, or to how many GPUs a `rate` needs.

    `standings` are the set-ups, the best first; `notes` say how the traffic was made; `runs` were played.
    `assumptions` are what the answer takes for granted: engines, requests, prices.
    """

    title: str
    criteria: Criteria = field(repr=False)
    rate: float | None
    standings: Sequence[Standing] = field(repr=False)
    notes: Sequence[str] = ()
    runs: int = 0
    assumptions: Sequence[str] = ()

    @property
    def best(self) -> Standing | None:
        """The best set-up; None where none keeps the targets."""
        return self.standings[0] if self.standings[0].stands else None

    @cached_property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return sentence(self.standings, self.rate, self.criteria.confidence)

    @cached_property
    def table(self) -> str:
        """The set-ups as a table in Markdown, which reads as well as plain text."""
        lines, left = markdown(self.set_ups), self.left_out
        return "\n".join([*lines, *([""] if lines and left else []), *left])

    @property
    def left_out(self) -> list[str]:
        """A line for each set-up that does not keep the targets, which says why."""
        return [f"- {one.setup.name}: {one.problem}" for one in self.standings if not one.stands]

    @property
    def set_ups(self) -> Table:
        """The set-ups that keep the targets, a row each."""
        return table(self.standings, self.criteria.targets, self.rate)

    @cached_property
    def text(self) -> str:
        """The table, the sentence, and what to know of it."""
        return "\n".join([self.table, "", self.sentence, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """The assumptions, and notes on the traffic, in a line each."""
        return [f"* {text}" for text in (*(f"assumed {one}" for one in self.assumptions), *self.notes)]

    @property
    def best_scenario(self) -> Scenario | None:
        """The scenario of the best set-up with its replicas, at the rate; ``ksim run`` plays it."""
        best = self.best
        if best is None or best.point is None:
            return None
        made = best.setup.replicas(best.replicas)
        return evolve(made, workload=Traffic.of(made.workload, self.criteria.count).at(best.point.rate))

    @property
    def document(self) -> dict[str, Any]:
        """All of it, as capacity.json has it."""
        criteria = self.criteria
        return {
            "sentence": self.sentence, "scenario": self.title, "rate": self.rate,
            "targets": [str(target) for target in criteria.targets], "confidence": criteria.confidence,
            "seed": criteria.seed, "requests": criteria.count, "model_errors": criteria.model_errors,
            "runs": self.runs, "notes": list(self.notes), "assumptions": list(self.assumptions),
            "best": self.best.setup.name if self.best else None, "set_ups": set_ups(self.standings, self.rate),
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each rate that was tried of each set-up; raises MissingExtra if pandas is not installed."""
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "capacity.to_pandas()")
        import pandas

        return pandas.json_normalize([_flat(one, point) for one in self.document["set_ups"] for point in one["points"]])

    def plot(self) -> "Picture":
        """Attainment and goodput over the rate, with bands; a notebook shows it."""
        from ksim.views.figures.studies import capacity_chart

        return capacity_chart(_subject(self.title, self.standings), self.document, FEWEST)

    def save(self, folder: Path) -> None:
        """Write capacity.json, best.toml and plots/curve.png into *folder*."""
        (folder / "capacity.json").write_text(json.dumps(self.document, indent=2, allow_nan=False,
                                                         ensure_ascii=False) + "\n", encoding="utf-8")
        if (best := self.best_scenario) is not None:
            (folder / "best.toml").write_text(best.to_toml(), encoding="utf-8")
        if any(one.points for one in self.standings):
            (folder / "plots").mkdir(exist_ok=True)
            self.plot().save(folder / "plots" / "curve.png")

    def _repr_html_(self) -> str:
        table = [self.set_ups] if self.best else []
        left = [line.removeprefix("- ") for line in self.left_out]
        return notebook(self.title, self.sentence, *table, *left, *self.remarks)


def _flat(one: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    return {"set_up": one["name"], **one["settings"], "replicas": one["replicas"], "gpus": one["gpus"], **point}
