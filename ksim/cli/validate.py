"""`ksim validate`: how close ksim is to what was recorded and measured.

`ksim validate serving RESULT... --scenario SCENARIO`: a deployment's benchmark beside its simulation.

`ksim validate kernels`: errors of the oracles on measured kernels.

`ksim validate schedule`: recorded schedules of vLLM and SGLang, replayed step by step.

`ksim validate autoscalers`: recorded decisions of autoscalers, replayed one by one.

`ksim validate startup`: measured start-ups of engines, phase by phase.
"""

import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ksim.cli.flags import JsonFile, Wide, console, say, status, write_json
from ksim.cli.help import App
from ksim.cli.run import Settings
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.calibration.accuracy import KernelReport
    from ksim.validation.benchmarks.comparison import Compared, RunPart
    from ksim.validation.schedules import Difference, ScheduleReport
    from ksim.validation.startups import PhaseErrors, StartupRow

app = App(help="Compare ksim with recordings and measurements.", no_args_is_help=True)

_LATENCIES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2el": "E2EL ms"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_RATES = {"request_throughput": "requests/s", "output_throughput": "output tokens/s",
          "total_token_throughput": "all tokens/s"}
#: With more cases than this, the table has a row for each kind of case.
_LISTED = 20


@app.callback()
def validate() -> None:
    """Compare ksim with recordings and measurements."""


@app.command()
def serving(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT...", help="results of `vllm bench serve`, SGLang's"
                                                  " bench_serving, aiperf, genai-perf, guidellm, InferenceMAX, or"
                                                  " vLLM's spans (see `ksim list recordings`)")],
    scenario: Annotated[Path | None, typer.Option("--scenario", metavar="FILE", help="scenario of the deployment that"
                                                  " was benchmarked; its workload is that of the results")] = None,
    settings: Settings = None, json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Simulate benchmarked requests and compare latency and throughput, run by run: how far, and what differs.

    Requests are sent at their recorded times, or as the recorded concurrency allows.
    """
    from ksim.validation.benchmarks import comparison
    from ksim.validation.benchmarks.comparison import as_json, trends
    from ksim.validation.benchmarks.find import runs_of
    from ksim.validation.benchmarks.recorded import scenario_of

    deployment = _deployment(results, scenario)
    screen = console()
    with status("reading") as shown:
        asked = scenario_of(deployment, settings or ())
        compared = comparison.compare(runs_of(results), asked, lambda name: shown.update(escape(name)))
    for one in compared:
        _print_run(one)
    if len(compared) > 1:
        screen.print(_by_run(compared))
        for line in trends(compared):
            screen.print(f"from the lowest to the highest load: {line}", highlight=False)
    write_json(json_file, as_json(compared))
    say(_summary(compared))


def _deployment(results: Sequence[Path], scenario: Path | None) -> Path:
    """The file of the *scenario*; raises ConfigError without one, and DataError where *results* are none either."""
    from ksim.foundation.errors import ConfigError
    from ksim.validation.benchmarks.find import reader_of

    if scenario is not None:
        return scenario
    if len(results) == 1 and results[0].is_file():
        reader_of(results[0])
        raise ConfigError("--scenario", f"{results[0]} is the result of a benchmark: name the scenario of the"
                                        " deployment, such as --scenario scenario.toml")
    raise ConfigError("--scenario", "name the scenario of the deployment that was benchmarked, such as --scenario"
                                    " scenario.toml")


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
    """Return three lines: the measured value, the predicted one, and the error in per cent; "" if it is not known."""
    if name not in one.figures:
        return ""
    measured, predicted = one.figures[name]
    return f"{scale * measured:.4g}\n{scale * predicted:.4g}\n{_signed(one.error(name))}"


def _cell(one: "Compared", name: str, scale: float) -> str:
    """The same in one line."""
    return _lines(one, name, scale).replace("\n", " ")


def _signed(error: float) -> str:
    return "" if isnan(error) else f"{0.0 if abs(error) < 0.05 else error:+.1f}"


def _parts(parts: Sequence["RunPart"], title: str) -> Table:
    rows = Table.of(title, ">requests", ">TTFT ms", ">TPOT ms", title="means: measured, predicted, error %")
    for part in parts:
        rows.add_row(part.what, f"{part.requests:,}", *(_pair(*pair) for pair in (part.ttft, part.tpot)))
    return rows


def _pair(measured: float, predicted: float) -> str:
    if isnan(measured) or isnan(predicted) or not measured:
        return ""
    return f"{1e3 * measured:.4g} {1e3 * predicted:.4g} {_signed(100 * (predicted / measured - 1))}"


def _causes(one: "Compared") -> list[str]:
    """Return a line for each difference, with its part of the mean latency: positive where the simulation lacks it."""
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


@app.command()
def kernels(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of kernels_<family>.parquet or of public tables,"
                                         " or one file")],
    gpu: Annotated[str, typer.Option(help="predict only this GPU; needed where the files do not name theirs")] = "",
    oracle: Annotated[str, typer.Option(help="latency oracle; package.module:Class for your own")] = "measured",
    profile: Annotated[Path | None, typer.Option(help="profile for the oracle, in place of the one that ships")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare an oracle with measured kernels, by GPU, family and number format.

    For public tables, `measured` is fitted to the few rows of the same GPU that a sweep would have measured.  For a
    sweep, the profile of its GPU is used; rows that it was fitted
    to are held back in turn.
    """
    from ksim.calibration.accuracy import Question, validate
    from ksim.foundation.config import Choice

    question = Question(path=path, gpu=gpu, oracle=Choice(oracle, {"path": str(profile)} if profile else {}))
    with status("reading") as line:
        report = validate(question, lambda name: line.update(f"predicting {name}"))
    show_kernels(report, json_file)


def show_kernels(report: "KernelReport", json_file: Path | None) -> None:
    """Print the errors of an oracle, and write them to *json_file*, if one is given."""
    screen = console()
    for remark in report.remarks:
        say(f"note: {remark}")
    if report.left:
        screen.print(_left(report))
    screen.print(_cells(report))
    screen.print(_worst(report))
    _write_kernels(json_file, report)
    for name, family in report.families.items():
        say(f"{name}: {family['mape']:.2f} % of {family['points']:,} points")
    covered = "" if report.coverage is None else f"; {report.coverage:.1f} % lie in their 90 % intervals"
    say(f"mean over families: {report.mean:.2f} %{covered}")


def _cells(report: "KernelReport") -> Table:
    rows = Table.of("gpu", "family", "format", "tag", "rows are", ">points", ">MAPE %", ">median", ">p90", ">p99",
                    ">bias", ">in 90 %", title="errors", hide=("rows are", "in 90 %", "p99", "p90", "bias", "tag"))
    for cell in report.cells:
        rows.add_row(cell.gpu, cell.family, cell.dtype, cell.tag, cell.how, f"{cell.points:,}", f"{cell.mape:.2f}",
                     f"{cell.median:.2f}", f"{cell.p90:.1f}", f"{cell.p99:.1f}", f"{cell.bias:+.2f}",
                     "" if cell.coverage is None else f"{cell.coverage:.1f}")
    return rows


def _worst(report: "KernelReport") -> Table:
    rows = Table.of("gpu", "family", "format", "tag", "worst shapes: measured, and how far off", title="worst shapes")
    for cell in report.cells:
        for i, shape in enumerate(cell.worst):
            rows.add_row(*((cell.gpu, cell.family, cell.dtype, cell.tag) if i == 0 else ("",) * 4), shape)
    return rows


def _left(report: "KernelReport") -> Table:
    rows = Table.of("of", ">rows", "left out, of training and test alike", title="rows left out")
    for name, left in report.left:
        rows.add_row(name, f"{left.rows:,}", left.reason)
    return rows


def _write_kernels(path: Path | None, report: "KernelReport") -> None:
    from attrs import asdict

    outcome = {"families": report.families, "mean": report.mean, "coverage": report.coverage,
               "cells": [asdict(cell) for cell in report.cells],
               "left_out": [{"of": name, **asdict(left)} for name, left in report.left]}
    write_json(path, outcome)


@app.command()
def schedule(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of case files (*.json.gz, *.json), or one file")],
    case: Annotated[str, typer.Option(metavar="NAME", help="replay only this case")] = "",
    first_difference: Annotated[bool, typer.Option("--first-difference", help="print the whole step in which a case"
                                                   " first differs, as recorded and as replayed")] = False,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Replay recorded schedules of vLLM and SGLang and compare every step; exits with 0 only if all are exact."""
    from ksim.validation import schedules

    reports = schedules.validate(path, case)
    _print_reports(reports)
    if first_difference:
        for report in reports:
            if report.difference is not None:
                _print_steps(report.case, report.difference)
    _conclude(reports, json_file)


@app.command()
def autoscalers(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of files of cases (*.json), or one file")],
    case: Annotated[str, typer.Option(metavar="NAME", help="replay only this case")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Replay recorded decisions of autoscalers and compare every one; exits with 0 only if all are exact."""
    from ksim.validation import autoscalers as cases

    reports = cases.validate(path, case)
    _print_reports(reports)
    _conclude(reports, json_file)


@app.command()
def startup(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="table of measured phases, such as startup.csv")],
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare start-ups of engines with measured ones, phase by phase, and list the rows that are more than 15 % off.

    Figures of start-ups (ksim/data/startup) were fitted to some of the rows; "checks" are the others.
    """
    from attrs import asdict

    from ksim.validation.startups import LIMIT, by_phase, validate

    rows = validate(path)
    phases, bad = by_phase(rows), [row for row in rows if not row.good]
    console().print(_by_phase(phases))
    if bad:
        console().print(_bad_starts(bad))
    write_json(json_file, {"phases": [asdict(phase) for phase in phases],
                           "bad": [{**asdict(row), "error": row.error} for row in bad]})
    every = phases[-1]
    say(f"rows within {100 * LIMIT:g} %: {every.within} of {every.rows}, {every.checked_within} of {every.checked}"
        f" checks; {every.rows - every.known} are no part of a start here")


def _by_phase(phases: Sequence["PhaseErrors"]) -> Table:
    rows = Table.of("phase", ">rows", ">median error %", ">within 15 %", ">checks", ">within 15 % ")
    for one in phases:
        rows.add_row(one.phase, str(one.rows), "" if one.median is None else f"{100 * one.median:.1f}",
                     f"{one.within / one.rows:.0%}", str(one.checked),
                     f"{one.checked_within / one.checked:.0%}" if one.checked else "")
    return rows


def _bad_starts(bad: Sequence["StartupRow"]) -> Table:
    rows = Table.of("source", "run", "model", "state", "phase", ">measured s", ">predicted s", ">error %",
                    title="more than 15 % off, or no part of a start", hide=("run", "source"))
    for row in bad:
        rows.add_row(row.source, row.run, row.model, row.state, row.phase, f"{row.measured:.3g}",
                     "" if row.predicted is None else f"{row.predicted:.3g}",
                     "" if row.error is None else f"{100 * row.error:+.0f}")
    return rows


def _print_reports(reports: Sequence["ScheduleReport"]) -> None:
    failures = [(report.case, report.difference) for report in reports if report.difference is not None]
    console().print(_by_case(reports) if len(reports) <= _LISTED else _by_kind(reports))
    if failures:
        console().print(_differences(failures))


def _conclude(reports: Sequence["ScheduleReport"], json_file: Path | None) -> None:
    """Say how many cases are exact, in the last line; raises Exit where one is not."""
    exact = sum(report.exact for report in reports)
    _write(json_file, reports)
    say(f"exact cases: {exact} of {len(reports)}")
    if exact < len(reports):
        raise typer.Exit(1)


def _by_case(reports: Sequence["ScheduleReport"]) -> Table:
    rows = Table.of("case", ">steps", "exact")
    for report in reports:
        rows.add_row(report.case, str(report.steps), "yes" if report.exact else "no")
    return rows


def _by_kind(reports: Sequence["ScheduleReport"]) -> Table:
    kinds: dict[str, list[ScheduleReport]] = {}
    for report in reports:
        kinds.setdefault(report.kind, []).append(report)
    rows = Table.of("kind", ">cases", ">steps", ">exact")
    for kind, members in kinds.items():
        rows.add_row(kind, str(len(members)), str(sum(report.steps for report in members)),
                     str(sum(report.exact for report in members)))
    return rows


def _differences(failures: Sequence[tuple[str, "Difference"]]) -> Table:
    rows = Table.of("case", ">step", "key", "expected", "got", title="first differences")
    for name, difference in failures:
        rows.add_row(name, "" if difference.step is None else str(difference.step), difference.key,
                     *("" if value is None else json.dumps(value) for value in (difference.expected, difference.got)))
    return rows


def _print_steps(name: str, difference: "Difference") -> None:
    say(f"{name}{'' if difference.step is None else f', step {difference.step}'}: {difference.key}")
    for word, row in zip(("expected", "got"), difference.rows, strict=True):
        say(f"  {word:8} {json.dumps(row, sort_keys=True)}")


def _write(path: Path | None, reports: Sequence["ScheduleReport"]) -> None:
    from attrs import asdict, fields

    from ksim.validation.schedules import Difference

    failures = {report.case: asdict(report.difference, filter=lambda field, _: field != fields(Difference).rows)
                for report in reports if report.difference is not None}
    outcome = {"cases": len(reports), "exact": len(reports) - len(failures), "failures": failures,
               "steps": sum(report.steps for report in reports)}
    write_json(path, outcome)
