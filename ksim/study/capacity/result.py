"""What `ksim.capacity` returns: the set-ups as they stand, in words, as tables and as figures."""

import json
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from ksim.foundation.errors import MissingExtra
from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table
from ksim.simulation.scenario import Scenario
from ksim.study.capacity import table as tables
from ksim.study.capacity.answer import Standing
from ksim.study.capacity.document import set_ups
from ksim.study.capacity.picture import curve
from ksim.study.capacity.sentence import sentence
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Plan

if TYPE_CHECKING:
    import pandas

    from ksim.report.plots.picture import Picture


@define(eq=False, slots=False)
class Capacity:
    """The answer to how much load some set-ups carry, or to how many GPUs a `rate` needs.

    `standings` are the set-ups, the best first; `notes` say how the traffic was made; `runs` were played.
    `assumptions` are what the answer takes for granted: engines, requests, prices.
    """

    title: str
    plan: Plan = field(repr=False)
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
        return sentence(self.standings, self.rate, self.plan.confidence)

    @cached_property
    def table(self) -> str:
        """The set-ups as a table in Markdown, which reads as well as plain text."""
        lines, left = tables.markdown(self.set_ups), tables.left_out(self.standings)
        return "\n".join([*lines, *([""] if lines and left else []), *left])

    @property
    def set_ups(self) -> Table:
        """The set-ups that keep the targets, a row each."""
        return tables.table(self.standings, self.plan.targets, self.rate)

    @cached_property
    def text(self) -> str:
        """The table, the sentence, and what to know of it."""
        return "\n".join([self.table, "", self.sentence, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What is assumed, and how the traffic was made, in a line each."""
        return [f"* {text}" for text in (*(f"assumed {one}" for one in self.assumptions), *self.notes)]

    @property
    def best_scenario(self) -> Scenario | None:
        """The scenario of the best set-up with its replicas, at the rate; ``ksim run`` plays it."""
        best = self.best
        if best is None or best.point is None:
            return None
        made = best.setup.replicas(best.replicas)
        return evolve(made, workload=Traffic.of(made.workload, self.plan.count).at(best.point.rate))

    @property
    def document(self) -> dict[str, Any]:
        """All of it, as capacity.json has it."""
        plan = self.plan
        return {
            "sentence": self.sentence, "scenario": self.title, "rate": self.rate,
            "targets": [str(target) for target in plan.targets], "confidence": plan.confidence, "seed": plan.seed,
            "requests": plan.count, "model_errors": plan.model_errors, "runs": self.runs, "notes": list(self.notes),
            "assumptions": list(self.assumptions),
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
        return curve(self.title, self.standings, self.rate)

    def save(self, folder: Path) -> None:
        """Write capacity.json, best.toml and plots/curve.png into *folder*."""
        (folder / "capacity.json").write_text(json.dumps(self.document, indent=2, allow_nan=False,
                                                         ensure_ascii=False) + "\n", encoding="utf-8")
        if (best := self.best_scenario) is not None:
            (folder / "best.toml").write_text(best.to_toml(), encoding="utf-8")
        if any(one.points for one in self.standings):
            from ksim.report.plots.style import looks

            (folder / "plots").mkdir(exist_ok=True)
            with looks():
                self.plot().save(folder / "plots" / "curve.png")

    def _repr_html_(self) -> str:
        table = [html_table(self.set_ups)] if self.best else []
        left = [line.removeprefix("- ") for line in tables.left_out(self.standings)]
        return html_block(self.title, self.sentence, *table, *left, *self.remarks)


def _flat(one: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    return {"set_up": one["name"], **one["settings"], "replicas": one["replicas"], "gpus": one["gpus"], **point}
