"""The tables that `ksim roofline` prints, and their rows as plain values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.table import Table

from ksim.cli.screen import table
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.simulation.assembly import Site
from ksim.simulation.portability import LARGE, WIDE, ZONES, Family, Point, Survey


@frozen
class Report:
    """The steps of *site*'s engine, kernel by kernel, and their families on several GPUs."""

    site: Site
    batches: Mapping[str, Batch]
    steps: Mapping[str, Sequence[Point]]
    survey: Survey

    @property
    def model(self) -> str:
        """What it is called in the catalogue, or the folder of its config.json."""
        name = self.site.scenario.model
        return Path(name).parent.name if catalog.is_file(name) else Path(name).name

    @property
    def title(self) -> str:
        return f"{self.model} on {self.site.scenario.serve.gpus} x {self.site.gpu.name}"

    @property
    def compares(self) -> bool:
        """Whether there are GPUs to compare, without which eta has no spread."""
        return len(self.survey.gpus) > 1

    def heading(self, step: str) -> str:
        return f"{step.capitalize()}: {_described(self.batches[step])}"


def _described(batch: Batch) -> str:
    """Such as "64 sequences of 1,024 tokens, 512 new tokens after 128"; only counts, where that would be long."""
    decodes, chunks = Counter(batch.contexts), Counter(batch.chunks)
    if len(decodes) > 1 or len(chunks) > 1:
        return f"{_plural(len(batch.contexts), 'decode')}, {_plural(len(batch.chunks), 'prompt chunk')}," \
               f" {_plural(batch.tokens, 'token')}"
    parts = [f"{_plural(count, 'sequence')} of {context:,} tokens" for context, count in decodes.items()]
    parts += [(f"{count} x " if count > 1 else "") + f"{new:,} new tokens" + (f" after {context:,}" if context else "")
              for (new, context), count in chunks.items()]
    return ", ".join(parts)


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def show(console: Console, report: Report) -> None:
    """Print a table of kernels for each step, and one of families."""
    for step, points in report.steps.items():
        console.print(f"\n[bold]{report.title}[/], {report.heading(step)}")
        console.print(_kernels(points))
    console.print("[bold]eta of kernel families[/], geometric means weighted by time")
    console.print(_families(report.survey))
    for zone in ZONES:
        if any(family.zone == zone for family in report.survey.families):
            console.print(f"{zone.name}: {zone.means}")
    console.print(f"eta is large from {LARGE:g} on, its spread wide from {WIDE:g} on: our thresholds, for want of"
                  f" published ones")
    for gpu, reason in report.survey.unpriced.items():
        console.print(f"not priced on {gpu}: {reason}", markup=False)


def _kernels(points: Sequence[Point]) -> Table:
    rows = table("kernel", "family", "shape", ">runs", ">share", ">FLOP/byte", ">TFLOP/s", ">of the roof", "bound",
                 ">eta", ">90 % of eta")
    total = sum(point.seconds for point in points)
    for point in points:
        row = kernel_row(point, total)
        rows.add_row(row["kernel"], row["family"], row["shape"], str(row["runs"]), f"{row['share']:.1%}",
                     _number(row["flop_per_byte"]), _number(row["tflops"]),
                     "" if row["roof_share"] is None else f"{row['roof_share']:.1%}", row["bound"],
                     _number(row["eta"]), f"{row['eta_low']:.2f}-{row['eta_high']:.2f}" if row["eta_low"] else "")
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{2 if value < 100 else 1}f}"


def _families(survey: Survey) -> Table:
    rows = table("step", "family", ">share", *(f">{gpu}" for gpu in survey.gpus), ">mean", ">spread", "zone")
    for family in survey.families:
        rows.add_row(family.step, family.name, f"{family.share:.1%}",
                     *(_number(family.etas.get(gpu)) for gpu in survey.gpus), _number(family.eta),
                     _number(family.spread), family.zone.name if family.zone else "")
    return rows


def kernel_row(point: Point, total: float) -> dict[str, Any]:
    """A row of the table, as plain values; what cannot be said is None."""
    span = point.span
    low, high = (end * point.eta / span.seconds for end in (span.low, span.high))
    row = {"kernel": span.label, "family": span.family, "shape": str(span.shape), "runs": point.runs,
           "seconds": span.seconds, "share": point.seconds / total,
           "flop_per_byte": span.flops / span.bytes if span.bytes and span.flops else None,
           "tflops": span.flops / span.seconds / 1e12 if span.flops else None,
           "roof_share": point.reached or None, "bound": span.bound,
           "eta": point.eta, "eta_low": low, "eta_high": high}
    return {key: None if isinstance(value, float) and isnan(value) else value for key, value in row.items()}


def family_row(family: Family) -> dict[str, Any]:
    return {"step": family.step, "family": family.name, "share": family.share, "eta": dict(family.etas),
            "mean": family.eta, "spread": family.spread, "zone": family.zone.name if family.zone else None}
