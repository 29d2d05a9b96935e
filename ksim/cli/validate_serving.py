"""`ksim validate serving` and `ksim validate steps`: errors of simulated runs of vLLM and of benchmarks.

`ksim validate serving RESULT... --scenario SCENARIO`: a deployment's benchmark beside its simulation.
"""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ksim.cli.flags import JsonFile, Wide, console, oracle_of, say, status, write_json
from ksim.cli.run import Settings
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.validation.benchmarks.comparison import Compared, Part
    from ksim.validation.serving.comparison import ComparedRun, Figures, StepReport
    from ksim.validation.serving.recordings import ServerSpec


_LATENCIES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2el": "E2EL ms"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_RATES = {"request_throughput": "requests/s", "output_throughput": "output tokens/s",
          "total_token_throughput": "all tokens/s"}


def compare_results(paths: Sequence[Path], scenario: Path, settings: Sequence[str], json_file: Path | None) -> None:
    """Simulate the requests of benchmark results with *scenario*; print how far both are apart, and what differs."""
    from ksim.validation.benchmarks import comparison
    from ksim.validation.benchmarks.comparison import as_json, trends
    from ksim.validation.benchmarks.find import runs_of
    from ksim.validation.benchmarks.recorded import scenario_of

    screen = console()
    with status("reading") as shown:
        asked = scenario_of(scenario, settings)
        compared = comparison.compare(runs_of(paths), asked, lambda name: shown.update(escape(name)))
    for one in compared:
        _print_run(one)
    if len(compared) > 1:
        screen.print(_by_run(compared))
        for line in trends(compared):
            screen.print(f"from the lowest to the highest load: {line}", highlight=False)
    write_json(json_file, as_json(compared))
    say(_summary(compared))


def _print_run(one: "Compared") -> None:
    screen, run = console(), one.recorded
    failed = f", {run.failed:,} failed" if run.failed else ""
    screen.print(f"\n[bold]{escape(run.name)}[/]: {run.tool}, {run.count:,} requests{failed}, {run.load}")
    screen.print(f"note: simulated: {escape(one.how)}", highlight=False)
    for remark in one.remarks:
        screen.print(f"note: {escape(remark)}", highlight=False)
    screen.print(_figures(one))
    for parts, title in ((one.by_load, "by load"), (one.by_prompt, "by length of the prompt")):
        if len(parts) > 1:
            screen.print(_parts(parts, title))
    for line in _causes(one):
        screen.print(line, highlight=False)


def _figures(one: "Compared") -> Table:
    """Three lines for each figure, which fit into 80 columns."""
    rows = Table.of("", *(f">{title}" for title in _STATISTICS.values()))
    for latency, title in _LATENCIES.items():
        cells = [_lines(one, f"{latency}_{name}", 1e3) for name in _STATISTICS]
        if any(cells):
            rows.add_row(f"{title}, measured\n  predicted\n  error %", *cells)
    for rate, title in _RATES.items():
        if cell := _lines(one, rate, 1.0):
            rows.add_row(f"{title}, measured\n  predicted\n  error %", cell, *[""] * (len(_STATISTICS) - 1))
    return rows


def _lines(one: "Compared", name: str, scale: float) -> str:
    """What was measured, what is predicted, and the error in per cent, a line each; empty for what is not known."""
    if name not in one.figures:
        return ""
    measured, predicted = one.figures[name]
    return f"{scale * measured:.4g}\n{scale * predicted:.4g}\n{_signed(one.error(name))}"


def _cell(one: "Compared", name: str, scale: float) -> str:
    """The same in one line."""
    return _lines(one, name, scale).replace("\n", " ")


def _signed(error: float) -> str:
    return "" if isnan(error) else f"{0.0 if abs(error) < 0.05 else error:+.1f}"


def _parts(parts: Sequence["Part"], title: str) -> Table:
    rows = Table.of(title, ">requests", ">TTFT ms", ">TPOT ms", title="means: measured, predicted, error %")
    for part in parts:
        rows.add_row(part.what, f"{part.requests:,}", *(_pair(*pair) for pair in (part.ttft, part.tpot)))
    return rows


def _pair(measured: float, predicted: float) -> str:
    if isnan(measured) or isnan(predicted) or not measured:
        return ""
    return f"{1e3 * measured:.4g} {1e3 * predicted:.4g} {_signed(100 * (predicted / measured - 1))}"


def _causes(one: "Compared") -> list[str]:
    """What differs, with its milliseconds of the mean latency: more than simulated where positive."""
    if not one.causes:
        return ["what differs: nothing by more than 2 % of a mean latency"]
    return ["what differs (ms that the deployment needs more than simulated):",
            *(f"  {cause.metric.upper():4} {1e3 * cause.seconds:+10.3f} ms  [bold]{cause.name}[/]:"
              f" {escape(cause.evidence)}" for cause in one.causes)]


def _by_run(compared: Sequence["Compared"]) -> Table:
    names = {"ttft_mean": "TTFT ms", "tpot_mean": "TPOT ms", "output_throughput": "output tokens/s"}
    rows = Table.of("run", "load", ">requests", *(f">{title}" for title in names.values()),
                    title="all runs, by load: means, measured, predicted, error %",
                    hide=("output tokens/s", "load", "requests"))
    for one in compared:
        rows.add_row(one.recorded.name, str(one.recorded.load), f"{one.recorded.count:,}",
                     *(_cell(one, name, 1.0 if name in _RATES else 1e3) for name in names))
    return rows


def _summary(compared: Sequence["Compared"]) -> str:
    from ksim.validation.benchmarks.comparison import HEADLINES, median_ape

    titles = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "throughput"}
    errors = ((titles[name], median_ape(compared, figure)) for name, figure in HEADLINES.items())
    known = ", ".join(f"{title} {error:.2f} %" for title, error in errors if not isnan(error))
    return f"median absolute errors of {len(compared)} runs: {known or 'none known'}"


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
    from ksim.validation.benchmarks.find import reader_of

    if len(paths) > 1 or settings:
        raise ConfigError("--scenario", "name the scenario of the deployment that was benchmarked, such as --scenario"
                                        " scenario.toml")
    (path,) = paths
    if path.is_file() and not path.name.startswith("engine_"):
        reader_of(path)
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
    from ksim.validation.serving.recordings import ServerSpec

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
