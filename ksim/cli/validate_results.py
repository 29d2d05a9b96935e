"""`ksim validate serving RESULT... --scenario SCENARIO`: a deployment's benchmark beside its simulation."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ksim.cli.output import console, say, status, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.validation.benchmarks.comparison import Compared, Part

_LATENCIES = {"ttft": "TTFT ms", "tpot": "TPOT ms", "itl": "ITL ms", "e2el": "E2EL ms"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_RATES = {"request_throughput": "requests/s", "output_throughput": "output tokens/s",
          "total_token_throughput": "all tokens/s"}


def results(paths: Sequence[Path], scenario: Path, settings: Sequence[str], json_file: Path | None) -> None:
    """Simulate the requests of benchmark results with *scenario*; print how far both are apart, and what differs."""
    from ksim.validation.benchmarks import comparison
    from ksim.validation.benchmarks.as_json import as_json
    from ksim.validation.benchmarks.find import runs_of
    from ksim.validation.benchmarks.scenario import scenario_of
    from ksim.validation.benchmarks.trends import trends

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
    from ksim.validation.benchmarks.as_json import HEADLINES, median_ape

    titles = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "throughput"}
    errors = ((titles[name], median_ape(compared, figure)) for name, figure in HEADLINES.items())
    known = ", ".join(f"{title} {error:.2f} %" for title, error in errors if not isnan(error))
    return f"median absolute errors of {len(compared)} runs: {known or 'none known'}"
