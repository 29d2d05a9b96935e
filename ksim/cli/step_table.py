"""The table that `ksim step` prints."""

from collections.abc import Sequence
from math import isnan

from rich.console import Console
from rich.table import Table

from ksim.cli.screen import table
from ksim.flow.batch import Batch
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import StepCost
from ksim.simulation.assembly import Site

_COLUMNS = ("kernel", "family", "shape", ">runs", ">us each", ">us all", ">share", "bound", ">waves", ">idle", "launch",
            ">eta", ">90 % of us", "source")


def show(console: Console, site: Site, batch: Batch, timelines: Sequence[StepCost]) -> None:
    """Print what one rank of each pipeline stage does for *batch*, and the step's totals."""
    scenario = site.scenario
    console.print(f"\n[bold]{scenario.model}[/] on {scenario.serve.gpus} x {site.gpu.name}: {len(batch.contexts)}"
                  f" decodes, {len(batch.chunks)} prompt chunks, {batch.tokens} tokens")
    for stage, timeline in enumerate(timelines):
        if len(timelines) > 1:
            console.print(f"\nstage {stage} of {len(timelines)}")
        console.print(_table(timeline))
        console.print(_totals(site, batch, timeline))


def _table(timeline: StepCost) -> Table:
    rows = table(*_COLUMNS)
    merged: dict[KernelCost, int] = {}
    for span, runs in timeline.counted():
        merged[span] = merged.get(span, 0) + runs
    for span, runs in merged.items():
        rows.add_row(*_row(span, runs, timeline.seconds))
    return rows


def _row(span: KernelCost, runs: int, total: float) -> tuple[str, ...]:
    share = runs * span.seconds / total
    waves = (f"{span.waves:.2f}", f"{span.idle:.0%}") if span.waves else ("", "")
    return (span.label, span.family, str(span.shape), str(runs), f"{1e6 * span.lasts:.2f}",
            "hidden" if span.hidden else f"{1e6 * runs * span.seconds:.1f}", f"{share:.1%}", span.bound, *waves,
            span.launch, "" if isnan(span.roofline_ratio) else f"{span.roofline_ratio:.2f}",
            "" if span.hidden else _interval(span.low, span.high, 1e6), span.source)


def _interval(low: float, high: float, scale: float) -> str:
    return "" if isnan(low) else f"{scale * low:.4g}-{scale * high:.4g}"


def _totals(site: Site, batch: Batch, timeline: StepCost) -> str:
    """GPU and host time, and what share of the peaks the step reaches."""
    flops = timeline.flops / timeline.seconds / site.gpu.flops[site.scenario.serve.precision.activations.element]
    moved = timeline.bytes / timeline.seconds / site.gpu.bandwidth
    static = site.gpu.power.idle * timeline.seconds
    between = _interval(timeline.low, timeline.high, 1e3)
    likely = f" ({between} at 90 %)" if between else ""
    outside = timeline.extrapolated / timeline.seconds
    prepare = site.host.worker.preparing(batch.sequences)
    return (f"GPU {1e3 * timeline.seconds:.3f} ms{likely}, launched as {timeline.launch}; host {1e3 * prepare:.3f} ms"
            f" for inputs and {1e3 * timeline.launch_seconds:.3f} ms for launches; MFU {flops:.1%}, MBU {moved:.1%};"
            f" {timeline.joules + static:.2f} J a GPU{' (power estimated)' * (site.gpu.power.basis == 'estimated')}"
            + (f"; {outside:.1%} of GPU time extrapolated" if outside else "") + "\n")
