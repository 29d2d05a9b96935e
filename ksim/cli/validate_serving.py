"""`ksim validate serving` and `ksim validate steps`: how far our runs are from those of a real vLLM."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.validation.serving.judging import Figures, Judged, StepVerdict
    from ksim.validation.serving.replay import Setting

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="folder of engine_NAME.json with requests_NAME.parquet and"
                                         " steps_NAME.parquet beside it, or one engine_NAME.json")]
_Gpu = Annotated[str, typer.Option(help="GPU that the runs were made on, which the files do not name")]
_Engine = Annotated[str, typer.Option(help="release of vLLM that made them")]
_Host = Annotated[str, typer.Option(help="CPUs under it")]
_Oracle = Annotated[str, typer.Option(help="latency oracle; by default measured where a profile ships, else learned")]
_Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the outcome here")]


def serving(folder: _Folder, gpu: _Gpu = "h200", engine: _Engine = "vllm-0.22", host: _Host = "default",
            oracle: _Oracle = "", json_file: _Json = None) -> None:
    """Replay recorded serving runs and compare latency, throughput and energy, run by run.

    A run's requests are sent when they were, or as its concurrency lets them.  Warm-up runs and the first static run
    are left out: they hold what an engine does only once.
    """
    from ksim.cli.json_file import write_outcome
    from ksim.cli.screen import console
    from ksim.validation.serving import judging

    screen = console()
    with screen.status("reading") as status:
        verdict = judging.serving(folder, _setting(gpu, engine, host, oracle), status.update)
    _notes(verdict.left, verdict.remarks, gpu, engine)
    screen.print(_runs(verdict.judged))
    write_outcome(json_file, judging.as_table(verdict))
    names = {"TTFT": "ttft_p50_ms", "TPOT": "tpot_p50_ms", "throughput": "throughput", "energy": "joules"}
    medians = ", ".join(f"{title} {verdict.median_ape(name):.2f} %" for title, name in names.items())
    print(f"median absolute errors of {len(verdict.judged)} runs: {medians}")


def steps(folder: _Folder, gpu: _Gpu = "h200", engine: _Engine = "vllm-0.22", host: _Host = "default",
          oracle: _Oracle = "", json_file: _Json = None) -> None:
    """Play the recorded batches through the step model alone, and compare the time from each step to the next."""
    from ksim.cli.json_file import write_outcome
    from ksim.cli.screen import console
    from ksim.validation.serving import judging

    screen = console()
    with screen.status("reading") as status:
        verdict = judging.intervals(folder, _setting(gpu, engine, host, oracle), status.update)
    _notes(verdict.left, verdict.remarks, gpu, engine)
    screen.print(_intervals(verdict))
    table = judging.steps_as_table(verdict)
    write_outcome(json_file, table)
    print(f"absolute errors of {table['steps']:,} steps: median {table['step_median_ape']:.2f} %,"
          f" 90th percentile {table['step_p90_ape']:.2f} %")


def _setting(gpu: str, engine: str, host: str, oracle: str) -> "Setting":
    from ksim.cli.flags import oracle_of
    from ksim.validation.serving.replay import Setting

    return Setting(gpu, engine, host, oracle_of(oracle or None))


def _notes(left: Sequence[tuple[str, str]], remarks: Sequence[str], gpu: str, engine: str) -> None:
    print(f"note: simulated on {gpu} as {engine}")
    for remark in remarks:
        print(f"note: {remark}")
    reasons: dict[str, list[str]] = {}
    for what, reason in left:
        reasons.setdefault(reason, []).append(what)
    for reason, names in reasons.items():
        print(f"left out, {len(names)}: {', '.join(names)}: {reason}")


def _runs(judged: Sequence["Judged"]) -> "Table":
    from ksim.cli.screen import table

    titles = ("TTFT p50 ms", "p90", "TPOT p50 ms", "ITL p99 ms", "tokens/s", "joules")
    rows = table("recording", "run", ">requests", *(f">{title}" for title in titles),
                 title="measured, predicted, error %")
    for run in judged:
        rows.add_row(run.recording, run.run, str(run.requests), *_cells(run.measured, run.predicted, run.errors))
    return rows


def _cells(measured: "Figures", predicted: "Figures", errors: "Figures") -> list[str]:
    from attrs import astuple

    return ["" if isnan(theirs) else f"{theirs:.4g} {ours:.4g} {error:+.1f}"
            for theirs, ours, error in zip(astuple(measured), astuple(predicted), astuple(errors), strict=True)]


def _intervals(verdict: "StepVerdict") -> "Table":
    import numpy as np

    from ksim.cli.screen import table

    rows = table("recording", "run", ">steps", ">idle before", ">median %", ">p90 %", ">bias %", ">all %",
                 title="time from step to step: absolute errors, the median signed one, and that of the sum")
    for recording, run, found, idle in verdict.runs:
        errors = np.array([interval.error for interval in found])
        if len(errors):
            total = sum(interval.predicted for interval in found) / sum(interval.measured for interval in found)
            rows.add_row(recording, run, str(len(errors)), str(idle), f"{np.median(np.abs(errors)):.2f}",
                         f"{np.quantile(np.abs(errors), 0.9):.1f}", f"{np.median(errors):+.2f}",
                         f"{100 * (total - 1):+.1f}")
    return rows
