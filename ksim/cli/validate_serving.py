"""`ksim validate serving` and `ksim validate steps`: errors of simulated runs of vLLM and of benchmarks."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import oracle_of
from ksim.cli.output import JsonFile, Wide, console, say, status, write_json
from ksim.cli.run import Settings
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.serving.comparison import ComparedRun, Figures, StepReport
    from ksim.validation.serving.replay import ServerSpec

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="folder of engine_NAME.json with requests_NAME.parquet and"
                                         " steps_NAME.parquet beside it, or one engine_NAME.json")]
_Results = Annotated[list[Path], typer.Argument(metavar="RESULT...", help="results of `vllm bench serve`, SGLang's"
                                                " bench_serving, aiperf, genai-perf, guidellm, InferenceMAX, or vLLM's"
                                                " spans (see `ksim list recordings`), with --scenario; or a folder of"
                                                " engine_NAME.json with requests_NAME.parquet beside them")]
_Scenario = Annotated[Path | None, typer.Option("--scenario", metavar="FILE", help="scenario of the deployment that was"
                                                " benchmarked; its workload is that of the results")]
_Gpu = Annotated[str, typer.Option(help="GPU of the recorded runs, which the files do not name")]
_Engine = Annotated[str, typer.Option(help="release of vLLM that was recorded")]
_Host = Annotated[str, typer.Option(help="host, whose CPUs vLLM ran on")]
_Oracle = Annotated[str, typer.Option(help="latency oracle; by default measured where a profile ships, else learned")]


def serving(results: _Results, scenario: _Scenario = None, settings: Settings = None, gpu: _Gpu = "h200",
            engine: _Engine = "vllm-0.22", host: _Host = "default", oracle: _Oracle = "",
            json_file: JsonFile = None, wide: Wide = False) -> None:
    """Simulate benchmarked requests and compare latency and throughput, run by run: how far, and what differs.

    Requests are sent at their recorded times, or as the recorded concurrency allows.  Of recorded engines (a folder of
    engine_NAME.json), warm-up runs and the first static run are left out: they include what an engine does only once.
    """
    if scenario is not None:
        from ksim.cli.validate_results import results as compare_results

        _refuse_server(gpu, engine, host, oracle)
        compare_results(results, scenario, settings or (), json_file)
    else:
        _recorded_engines(_only_folder(results, settings), _server(gpu, engine, host, oracle), json_file)


def _refuse_server(gpu: str, engine: str, host: str, oracle: str) -> None:
    """Raise ConfigError for flags of a server that the scenario describes."""
    from ksim.foundation.errors import ConfigError

    for name, value, usual in (("gpu", gpu, "h200"), ("engine", engine, "vllm-0.22"), ("host", host, "default"),
                               ("oracle", oracle, "")):
        if value != usual:
            raise ConfigError(f"--{name}", f"the scenario says that; write --set {name}={value}")


def _only_folder(paths: Sequence[Path], settings: Sequence[str] | None) -> Path:
    """The folder of recorded engines; raises ConfigError for what needs a scenario."""
    from ksim.foundation.errors import ConfigError
    from ksim.validation.benchmarks.files import tables_of
    from ksim.validation.benchmarks.find import reader_of

    if len(paths) > 1 or settings:
        raise ConfigError("--scenario", "name the scenario of the deployment that was benchmarked, such as --scenario"
                                        " scenario.toml")
    (path,) = paths
    if path.is_file() and not path.name.startswith("engine_"):
        reader_of(path, tables_of(path))
        raise ConfigError("--scenario", f"{path} is the result of a benchmark: name the scenario of the deployment,"
                                        " such as --scenario scenario.toml")
    return path


def _recorded_engines(folder: Path, server: "ServerSpec", json_file: Path | None) -> None:
    from ksim.validation.serving import comparison

    screen = console()
    with status("reading") as line:
        report = comparison.serving(folder, server, line.update)
    _notes(report.left, report.remarks, server.gpu, server.engine)
    screen.print(_runs(report.runs))
    write_json(json_file, comparison.as_table(report))
    names = {"TTFT": "ttft_p50_ms", "TPOT": "tpot_p50_ms", "throughput": "throughput", "energy": "joules"}
    medians = ", ".join(f"{title} {report.median_ape(name):.2f} %" for title, name in names.items())
    say(f"median absolute errors of {len(report.runs)} runs: {medians}")


def steps(folder: _Folder, gpu: _Gpu = "h200", engine: _Engine = "vllm-0.22", host: _Host = "default",
          oracle: _Oracle = "", json_file: JsonFile = None, wide: Wide = False) -> None:
    """Price the recorded batches one by one, and compare the time from each step to the next."""
    from ksim.validation.serving import comparison

    screen = console()
    with status("reading") as line:
        report = comparison.intervals(folder, _server(gpu, engine, host, oracle), line.update)
    _notes(report.left, report.remarks, gpu, engine)
    screen.print(_intervals(report))
    table = comparison.steps_as_table(report)
    write_json(json_file, table)
    say(f"absolute errors of {table['steps']:,} steps: median {table['step_median_ape']:.2f} %,"
          f" 90th percentile {table['step_p90_ape']:.2f} %")


def _server(gpu: str, engine: str, host: str, oracle: str) -> "ServerSpec":
    from ksim.validation.serving.replay import ServerSpec

    return ServerSpec(gpu, engine, host, oracle_of(oracle or None))


def _notes(left: Sequence[tuple[str, str]], remarks: Sequence[str], gpu: str, engine: str) -> None:
    say(f"note: simulated on {gpu} as {engine}")
    for remark in remarks:
        say(f"note: {remark}")
    reasons: dict[str, list[str]] = {}
    for what, reason in left:
        reasons.setdefault(reason, []).append(what)
    for reason, names in reasons.items():
        say(f"left out, {len(names)}: {', '.join(names)}: {reason}")


def _runs(runs: Sequence["ComparedRun"]) -> Table:
    titles = ("TTFT p50 ms", "p90", "TPOT p50 ms", "ITL p99 ms", "tokens/s", "joules")
    rows = Table.of("recording", "run", ">requests", *(f">{title}" for title in titles),
                    title="measured, predicted, error %", hide=("joules", "ITL p99 ms", "p90", "tokens/s"))
    for run in runs:
        rows.add_row(run.recording, run.run, str(run.requests), *_cells(run.measured, run.predicted, run.errors))
    return rows


def _cells(measured: "Figures", predicted: "Figures", errors: "Figures") -> list[str]:
    from attrs import astuple

    return ["" if isnan(theirs) else f"{theirs:.4g} {ours:.4g} {error:+.1f}"
            for theirs, ours, error in zip(astuple(measured), astuple(predicted), astuple(errors), strict=True)]


def _intervals(report: "StepReport") -> Table:
    import numpy as np

    rows = Table.of("recording", "run", ">steps", ">idle before", ">median %", ">p90 %", ">bias %", ">all %",
                    hide=("idle before", "all %", "p90 %"),
                    title="time from step to step: absolute errors, the median signed one, and the error of the sum")
    for recording, run, steps_of_run, idle in report.runs:
        errors = np.array([interval.error for interval in steps_of_run])
        if len(errors):
            predicted, measured = (sum(getattr(interval, name) for interval in steps_of_run)
                                   for name in ("predicted", "measured"))
            rows.add_row(recording, run, str(len(errors)), str(idle), f"{np.median(np.abs(errors)):.2f}",
                         f"{np.quantile(np.abs(errors), 0.9):.1f}", f"{np.median(errors):+.2f}",
                         f"{100 * (predicted / measured - 1):+.1f}")
    return rows
