"""The result of a run: numbers, tables, a report and files."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from attrs import define, field

from ksim.flow.events import Finished, Rejected
from ksim.flow.log import Log
from ksim.foundation import process
from ksim.foundation.errors import MissingExtra, UnknownName
from ksim.report import run_directory
from ksim.report.formats import vllm_block
from ksim.report.insights import insights
from ksim.report.pools_text import overview
from ksim.report.wording import WIDTH, Insight, model_name, subject
from ksim.results import arrow
from ksim.results.attribution import attribution_table
from ksim.results.attribution.activity import Shares
from ksim.results.attribution.energy import Energy, energy_summary
from ksim.results.gateway import adapter_summary
from ksim.results.history import History
from ksim.results.kernel_usage import KernelUsage
from ksim.results.kernels import kernel_table
from ksim.results.metrics import LatencyTargets, Summary, summarise
from ksim.results.pools import of_fleet, pool_summaries
from ksim.results.tables import request_table, routing_table, step_table
from ksim.results.tiers import Copies, Rates, fleet_footprint, footprint, tier_summary
from ksim.results.totals import Refusals

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, RenderableType

Label = str | int | float | bool | None
#: The tables of a run.
TABLES = ("requests", "steps", "kernels", "attribution")


@define(eq=False, slots=False)
class Result:
    """A finished run, whose numbers, tables and figures are computed on demand, and once.

    *labels* say what was run (`model_id`, `gpu`, `seed`, `request_rate`, `max_concurrency` and others) and come first
    in the summary.  With a `max_concurrency` the loop was closed, so no queue could keep growing.  *limits* are the
    latency targets of goodput.  *scenario* is the text that `save` keeps beside the results.  *remarks* tell the user
    how the workload was read.  *rates* give emissions and cost of energy, *pool_rates* those of pools that have
    others.
    """

    log: Log = field(repr=False)
    labels: Mapping[str, Label] = field(factory=dict)
    limits: LatencyTargets = field(factory=LatencyTargets)
    scenario: str = field(default="", repr=False)
    remarks: Sequence[str] = ()
    rates: Rates = Rates()
    pool_rates: Mapping[str, Rates] = field(factory=dict)

    @cached_property
    def summary(self) -> Summary:
        """Every number of the run by name; docs/glossary.md defines them."""
        measured = summarise(self.history, self.limits, closed=bool(self.labels.get("max_concurrency")))
        measured |= energy_summary(self.energy) | adapter_summary(self.log)
        measured |= tier_summary(self.log.engines, Copies.of(self.log))
        if self.history.pools:
            measured |= of_fleet(pool_summaries(self.history), measured)
        return judged(measured, self.labels, self.limits, self.rates, self.pool_rates)

    @cached_property
    def requests(self) -> pa.Table:
        """One row per request."""
        return request_table(self.history, self.energy)

    @cached_property
    def routing(self) -> pa.Table | None:
        """One row per choice of a router: what it saw, and what it chose; None where it sees nothing."""
        return routing_table(self.log)

    @cached_property
    def steps(self) -> pa.Table:
        """One row per step of each engine."""
        return step_table(self.history)

    @cached_property
    def kernels(self) -> pa.Table:
        """One row per kernel with its time, work and joules, and a row each for waiting for the CPU and idle time."""
        return kernel_table(self.history, self.usage)

    @cached_property
    def attribution(self) -> pa.Table:
        """The phases of each completed request's time: one row per request."""
        return attribution_table(self.shares)

    @cached_property
    def energy(self) -> Energy:
        """The joules of each request."""
        return Energy(self.shares)

    @cached_property
    def shares(self) -> Shares:
        """The shares of steps' GPU seconds that belong to decodes and to prompts."""
        return Shares(self.history, self.usage)

    @cached_property
    def insights(self) -> list[Insight]:
        """Sentences about what stands out in the run, warnings first."""
        return insights(self.history, self.usage, self.summary)

    @cached_property
    def subject(self) -> str:
        """Model, GPUs, parallelism and offered rate, in one line."""
        return subject(self.labels, self.history.engines, self.summary["offered_request_rate"])

    @cached_property
    def refusals(self) -> Refusals:
        """The reasons for rejected requests."""
        found = Refusals()
        for event in self.log.of(Rejected):
            found.add(event.reason)
        return found

    @property
    def served(self) -> bool:
        """Whether any request completed; faster than the summary."""
        return next(iter(self.log.of(Finished)), None) is not None

    @cached_property
    def history(self) -> History:
        """The log as arrays."""
        return History(self.log)

    @cached_property
    def usage(self) -> KernelUsage:
        """The distinct kernels of the run, and how often each ran."""
        return KernelUsage.of(self.history.steps)

    def to_pandas(self, table: str = "requests") -> "pandas.DataFrame":
        """One of the tables (requests, steps, kernels, attribution) as a DataFrame; times in seconds.

        Raises UnknownName for any other table, and MissingExtra if pandas is not installed.
        """
        if table not in TABLES:
            raise UnknownName("table", table, TABLES)
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "result.to_pandas()")
        return getattr(self, table).to_pandas()

    def _repr_html_(self) -> str:
        from ksim.report.formats import result_html

        return result_html(self.summary, self.insights, self.labels)

    def __rich__(self) -> "RenderableType":
        from ksim.report.text import report

        return report(self.summary, self.kernels, self.insights, self.labels, self.subject)

    def report(self, width: int = WIDTH) -> str:
        """The report as plain text; `rich.print(result)` prints it in colour."""
        from ksim.report.tables import as_text

        return as_text(self, width)

    def print(self, console: "Console | None" = None) -> None:
        """Print the report, in colour if the console has any."""
        from rich.console import Console

        (console or Console()).print(self, crop=False)  # a table may have all columns, however wide

    def vllm_block(self) -> str:
        """The numbers as `vllm bench serve` prints them."""
        return vllm_block(self.summary)

    def trace(self, path: Path | str, window: tuple[float, float] | None = None) -> None:
        """Write a trace for ui.perfetto.dev with the kernels of *window*, (from, to) in seconds."""
        from ksim.report.perfetto import write_trace

        write_trace(self.history, Path(path), window, model_name(self.labels), self.subject)

    def plots(self, directory: Path | str) -> list[Path]:
        """Draw all figures into *directory*; return the files."""
        from ksim.report.figures.run import run_charts

        Path(directory).mkdir(parents=True, exist_ok=True)
        charts = run_charts(self.history, self.usage, self.kernels, self.limits, self.summary, self.subject)
        return [chart.save(Path(directory) / f"{name}.png") for name, chart in charts]

    def save(self, directory: Path | str, scenario: str | None = None, plots: bool = True, trace: bool = True,
             window: tuple[float, float] | None = None) -> Path:
        """Write the run to *directory*, whole or not at all; the same run gives the same bytes.

        The trace has the kernels of *window*, (from, to) in seconds, or else of the first steps.  An earlier run
        there is replaced.  Anything else there, or a directory that cannot be written, raises ConfigError.
        """
        target = Path(directory).resolve()
        with process.paused(), arrow.frugally(), run_directory.replacing(target) as new:
            self._write(new, self.scenario if scenario is None else scenario)
            if trace:
                self.trace(new / "trace.json.gz", window)
            if plots:
                self.plots(new / "plots")
        return target

    def _write(self, directory: Path, scenario: str) -> None:
        from pyarrow import csv, parquet

        (directory / "scenario.toml").write_text(scenario, encoding="utf-8")
        summary = json.dumps(self.summary, indent=2, allow_nan=False, ensure_ascii=False)
        (directory / "summary.json").write_text(summary + "\n", encoding="utf-8")
        about = json.dumps(overview(self.history, self.subject, self.insights), ensure_ascii=False)
        (directory / "overview.json").write_text(about + "\n", encoding="utf-8")
        tables = {"requests": self.requests, "steps": self.steps, "attribution": self.attribution}
        if self.routing is not None:
            tables["routing"] = self.routing
        for name, table in tables.items():
            # Hardly a number repeats, so dictionaries would take ten times as long and save nothing.
            parquet.write_table(table, directory / f"{name}.parquet", compression="zstd", use_dictionary=False)
        csv.write_csv(self.kernels, directory / "kernels.csv")


def judged(measured: Summary, labels: Mapping[str, Label], limits: LatencyTargets, rates: Rates,
           pool_rates: Mapping[str, Rates] | None = None) -> Summary:
    """The summary of a run: its labels, its targets, what was *measured*, and emissions and cost."""
    targets = {f"slo_{name}_ms": None if limit is None else 1e3 * limit
               for name, limit in (("ttft", limits.ttft), ("tpot", limits.tpot), ("e2el", limits.e2el))}
    costs = fleet_footprint(measured, rates, pool_rates or {}) if "pools" in measured else footprint(measured, rates)
    whole = {**measured, **costs}
    assert not labels.keys() & (targets.keys() | whole.keys()), "a label must not hide a measurement"
    # JSON has no infinity; vLLM writes an unlimited request rate as this word.
    shown = {name: "inf" if label == math.inf else label for name, label in labels.items()}
    return {**shown, **targets, **whole}
