"""The result of a run: its numbers and tables, a report and files."""

import json
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define

from ksim.flow.events import EngineBuilt, RanksMet
from ksim.foundation import process
from ksim.results import arrow
from ksim.results.history import History
from ksim.results.measured import MeasuredRun
from ksim.results.series import busiest
from ksim.views.wording import WIDTH, Insight, model_name, subject

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


#: The most links in overview.json, and the points of their curves.
_LINKS, _POINTS = 8, 240


@define(eq=False, slots=False)
class Result(MeasuredRun):
    """A finished run with its report, figures and files; its numbers and tables are those of `MeasuredRun`."""

    @cached_property
    def insights(self) -> list[Insight]:
        """Sentences about what stands out in the run, warnings first."""
        from ksim.views.insights import insights

        return insights(self.history, self.usage, self.summary)

    @cached_property
    def subject(self) -> str:
        """Model, GPUs, parallelism and offered rate, in one line."""
        return subject(self.labels, self.history.engines, self.summary["offered_request_rate"])

    def _repr_html_(self) -> str:
        from ksim.views.text import result_html

        return result_html(self.summary, self.insights, self.labels)

    def __rich__(self) -> "RenderableType":
        from ksim.views.text import report

        return report(self.summary, self.kernels, self.insights, self.labels, self.subject)

    def report(self, width: int = WIDTH) -> str:
        """The report as plain text; `rich.print(result)` prints it in colour."""
        from ksim.views.tables import as_text

        return as_text(self, width)

    def print(self, console: "Console | None" = None) -> None:
        """Print the report, in colour if the console has any."""
        from rich.console import Console

        (console or Console()).print(self, crop=False)  # a table may have all columns, however wide

    def vllm_block(self) -> str:
        """The numbers as `vllm bench serve` prints them."""
        from ksim.views.text import vllm_block

        return vllm_block(self.summary)

    def trace(self, path: Path | str, window: tuple[float, float] | None = None) -> None:
        """Write a trace for ui.perfetto.dev with the kernels of *window*, (from, to) in seconds."""
        from ksim.views.perfetto import write_trace

        write_trace(self.history, Path(path), window, model_name(self.labels), self.subject)

    def plots(self, directory: Path | str) -> list[Path]:
        """Draw all figures into *directory*; return the files."""
        from ksim.views.figures.run import run_charts

        Path(directory).mkdir(parents=True, exist_ok=True)
        charts = run_charts(self.history, self.usage, self.kernels, self.limits, self.summary, self.subject)
        return [chart.save(Path(directory) / f"{name}.png") for name, chart in charts]

    def save(self, directory: Path | str, scenario: str | None = None, plots: bool = True, trace: bool = True,
             window: tuple[float, float] | None = None) -> Path:
        """Write the run to *directory*, whole or not at all; the same run gives the same bytes.

        The trace has the kernels of *window*, (from, to) in seconds, or else of the first steps.  An earlier run
        there is replaced.  Anything else there, or a directory that cannot be written, raises ConfigError.
        """
        from ksim.views import run_directory

        target = Path(directory).resolve()
        with process.paused(), arrow.frugally(), run_directory.replacing(target) as new:
            self._write(new, self.scenario if scenario is None else scenario)
            if trace:
                self.trace(new / "trace.json.gz", window)
            if plots:
                self.plots(new / "plots")
        return target

    def _overview(self) -> dict[str, Any]:
        """The content of overview.json, from which `ksim report` draws what the other files do not have."""
        return {
            "subject": self.subject,
            "insights": [{"text": insight.text, "warning": insight.warning} for insight in self.insights],
            "engines": [_engine(built) for built in self.history.engines],
            "links": {"count": len(self.history.links), "busiest": _links(self.history)},
            **self._slow_step(),
        }

    def _slow_step(self) -> dict[str, Any]:
        """The step in which ranks waited longest; none of runs whose GPUs cannot differ."""
        if not self.log.has(RanksMet):
            return {}
        from ksim.results.ranks import ShownStep
        from ksim.views.figures.ranks import MOST

        step = ShownStep.slowest(self.log, MOST)
        return {} if step is None else {"slow_step": step.content()}

    def _write(self, directory: Path, scenario: str) -> None:
        from pyarrow import csv, parquet

        (directory / "scenario.toml").write_text(scenario, encoding="utf-8")
        summary = json.dumps(self.summary, indent=2, allow_nan=False, ensure_ascii=False)
        (directory / "summary.json").write_text(summary + "\n", encoding="utf-8")
        about = json.dumps(self._overview(), ensure_ascii=False)
        (directory / "overview.json").write_text(about + "\n", encoding="utf-8")
        tables = {"requests": self.requests, "steps": self.steps, "attribution": self.attribution}
        if self.routing is not None:
            tables["routing"] = self.routing
        if self.scaling is not None and self.replicas is not None:
            tables |= {"scaling": self.scaling, "replicas": self.replicas}
        if self.log.has(RanksMet):
            from ksim.results.ranks import rank_rows

            tables["ranks"] = rank_rows(self.log.columns(RanksMet))
        for name, table in tables.items():
            # Hardly a number repeats, so dictionaries would take ten times as long and save nothing.
            parquet.write_table(table, directory / f"{name}.parquet", compression="zstd", use_dictionary=False)
        csv.write_csv(self.kernels, directory / "kernels.csv")


def _engine(built: EngineBuilt) -> dict[str, Any]:
    limit = built.limit_watts if isfinite(built.limit_watts) else None
    return {"engine": built.engine, "name": built.name, "pool": built.pool, "role": built.role, "gpu": built.gpu,
            "gpus": built.ranks * built.stages, "kv_blocks": built.kv_blocks, "peak_flops": built.peak_flops,
            "peak_bandwidth": built.peak_bandwidth, "static_watts": built.static_watts, "limit_watts": limit}


def _links(history: History) -> list[dict[str, Any]]:
    """The busiest links: their capacity in bytes/s, and the share of it in use: mean, peak, and means over the run."""
    edges = np.linspace(0, history.duration or 1.0, _POINTS + 1)
    return [{"name": link.name, "capacity": link.capacity, "mean": link.mean, "peak": link.use.peak,
             "use": np.round(link.use.means(edges), 5).tolist()} for link in busiest(history, _LINKS)]
