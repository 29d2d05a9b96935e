"""Commands of `python -m benchmarks.research` that compare ksim with measurements of single machines.

`serving` and `steps`: recorded runs of vLLM, whole and step by step.

`energy`: power and energy of kernels, runs and boards.

`transfers`: KV transfers between two nodes.

`wide-ep`: deployments of mixtures on many GPUs.

`kernels`: kernels of some GPUs, predicted by what others taught.
"""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import JsonFile, Wide, console, oracle_of, say, status, words_of, write_json
from ksim.cli.help import App
from ksim.views.tables import Table

if TYPE_CHECKING:
    from benchmarks.research.energy import BoardReport, EnergyReport, SustainedReport
    from benchmarks.research.serving.comparison import ComparedRun, Figures, ServingReport, StepReport
    from benchmarks.research.serving.recordings import ServerSpec
    from benchmarks.research.transfers import TransferReport
    from benchmarks.research.wide_ep import Result

app = App()

Runs = Annotated[Path, typer.Argument(metavar="DIR", help="folder of engine_NAME.json with requests_NAME.parquet and"
                                      " steps_NAME.parquet beside it, or one engine_NAME.json")]
Gpu = Annotated[str, typer.Option(help="GPU of the recorded runs, which the files do not name")]
Engine = Annotated[str, typer.Option(help="release of vLLM that was recorded")]
Host = Annotated[str, typer.Option(help="host, whose CPUs vLLM ran on")]
Oracle = Annotated[str, typer.Option(help="latency oracle; by default measured where a profile ships, else learned")]


@app.command()
def serving(folder: Runs, gpu: Gpu = "h200", engine: Engine = "vllm-0.22", host: Host = "default", oracle: Oracle = "",
            json_file: JsonFile = None, wide: Wide = False) -> None:
    """Simulate the recorded runs of engines and compare latency, throughput and energy, run by run.

    Requests are sent at their recorded times, or as the recorded concurrency allows.  Warm-up runs and the first static
    run are left out: they include what an engine does only once.
    """
    from benchmarks.research.serving import comparison

    screen = console()
    with status("reading") as line:
        report = comparison.serving(folder, _server(gpu, engine, host, oracle), line.update)
    _notes(report.left, report.remarks, gpu, engine)
    screen.print(_runs(report.runs))
    write_json(json_file, comparison.as_table(report))
    names = {"TTFT": "ttft_p50_ms", "TPOT": "tpot_p50_ms", "throughput": "throughput", "energy": "joules"}
    medians = ", ".join(f"{title} {report.median_ape(name):.2f} %" for title, name in names.items())
    say(f"median absolute errors of {len(report.runs)} runs: {medians}")


@app.command()
def steps(folder: Runs, gpu: Gpu = "h200", engine: Engine = "vllm-0.22", host: Host = "default",
          oracle: Oracle = "", json_file: JsonFile = None, wide: Wide = False) -> None:
    """Price the recorded batches one by one, and compare the time from each step to the next."""
    from benchmarks.research.serving import comparison

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
    from benchmarks.research.serving.recordings import ServerSpec

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


@app.command()
def energy(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder or file: sustained kernels"
                                         " (kernels_energy.parquet), serving runs (engine_NAME.json), or a public table"
                                         " with the power of boards (power_sample.parquet)")],
    gpu: Annotated[str, typer.Option(help="GPU of sustained kernels and serving runs, which do not name it")] = "h200",
    limit: Annotated[int, typer.Option(min=0, help="take only so many rows of a public table, drawn by the hashes of"
                                       " their shapes; 0 takes all")] = 0,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare power and energy with the measurements at PATH.

    Sustained kernels are predicted by fits without their shape, and without their family.  Serving runs are simulated.
    Of a public table, the rows of one shape in five are predicted; nothing was fitted to these.
    """
    from benchmarks.research.energy import EnergyQuestion, as_table, validate

    with status("reading") as line:
        report = validate(EnergyQuestion(path, gpu, limit), line.update)
    write_json(json_file, as_table(report))
    _print_energy(report)


def _print_energy(report: "EnergyReport") -> None:
    screen, lines = console(), []
    if report.kernels:
        screen.print(_sustained(report.kernels))
        lines += _sustained_lines(report.kernels)
    if report.runs:
        screen.print(_metered(report.runs))
        lines.append(f"joules of {len(report.runs.metered)} serving runs: median error"
                     f" {report.runs.median_ape('joules'):.2f} %")
    if report.table:
        screen.print(_boards(report.table))
        lines.append(_board_line(report.table))
    say("\n".join(lines))


def _sustained(report: "SustainedReport") -> Table:
    rows = Table.of("family", "format", "shape", ">W", ">us", *(f">{name}" for name in (
        "power", "without family", "time", "without family", "energy", "without family")),
        hide=("without family", "format", "us", "W"),
        title="sustained kernels: errors in %, fitted without the shape, and without the whole family")
    for shape, family in zip(report.shapes, report.families, strict=True):
        errors = [getattr(kernel, name) for name in ("power_error", "time_error", "energy_error")
                  for kernel in (shape, family)]
        rows.add_row(shape.row.family, shape.row.dtype, shape.row.shape, f"{shape.row.watts:.0f}",
                     f"{1e6 * shape.row.seconds:.1f}", *(f"{error:+.1f}" for error in errors))
    return rows


def _sustained_lines(report: "SustainedReport") -> list[str]:
    """The errors of kernels in words, also for times of captured graphs taken for those of a cool GPU."""
    from benchmarks.research.energy import mape

    def both(error: str, recovered: bool = False) -> str:
        ways = ((report.recovered_shapes, report.recovered_families) if recovered else
                (report.shapes, report.families))
        return " and ".join(f"{mape(kernels, error):.2f}" for kernels in ways)

    return [f"mean errors of {len(report.shapes)} sustained kernels, without their shape and without their family:"
            f" power {both('power')} %, time {both('time')} %, energy with that time {both('energy')} %",
            "note: graphs were timed at the clock that the kernel before them had left; taken for cool times, they make"
            f" time {both('time', True)} %, energy {both('energy', True)} %"]


def _metered(report: "ServingReport") -> Table:
    rows = Table.of("recording", "run", ">joules", ">predicted", ">error %", title="serving runs")
    for run in report.metered:
        rows.add_row(run.recording, run.run, f"{run.measured.joules:.0f}", f"{run.predicted.joules:.0f}",
                     f"{run.errors.joules:+.1f}")
    return rows


def _boards(report: "BoardReport") -> Table:
    rows = Table.of("gpu", "op", "format", ">rows", *(">MAPE %", ">median", ">bias", ">in 10 %") * 2,
                    hide=("in 10 %", "bias", "median", "op"),
                    title="power of boards, rows held back: errors of the model, and of a meter fitted to other rows")
    for cell in (*report.cells, *report.gpus, report.whole):
        cells = [f"{value:{sign}.1f}" for errors in (cell.drawn, cell.observed) for value, sign in (
            (errors.mape, ""), (errors.median, ""), (errors.bias, "+"), (errors.within, ""))]
        rows.add_row(cell.gpu, cell.op, cell.dtype, f"{cell.rows:,}", *cells)
    return rows


def _board_line(report: "BoardReport") -> str:
    whole = report.whole
    return (f"power of {whole.rows:,} rows of boards held back: {whole.drawn.mape:.2f} % on the mean,"
            f" {whole.drawn.median:.2f} % in the median; as a meter would read it, {whole.observed.mape:.2f} %,"
            f" {whole.observed.median:.2f} %")


@app.command()
def transfers(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured transfers, as transfers.csv")],
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare KV transfers between two nodes with measured ones.

    The constants of a connector are fitted to every second row of a series.  The other rows are held back.
    """
    from benchmarks.research.transfers import median_ape, validate

    report = validate(path)
    screen = console()
    screen.print(_transfers(report))
    if report.refused:
        screen.print(_refused(report))
    _write_transfers(json_file, report)
    held_back = (f"{median_ape(report.held_back):.2f} % in the median of {len(report.held_back)} rows held back"
                 if report.held_back else "no row is held back")
    say(f"seconds of transfers: {held_back}, {median_ape(report.transfers):.2f} % of all {len(report.transfers)}")


def _transfers(report: "TransferReport") -> Table:
    rows = Table.of("series", "connector", ">tokens", ">MB", ">ms", ">predicted", ">error %", "row is",
                    hide=("row is", "MB", "connector"),
                    title="transfers between two nodes")
    for transfer in report.transfers:
        row = transfer.row
        rows.add_row(row.series, row.plugin or "", f"{row.tokens:,}", f"{row.bytes / 1e6:,.0f}",
                     f"{1e3 * row.seconds:.2f}", f"{1e3 * transfer.predicted:.2f}", f"{transfer.error:+.1f}",
                     "fitted" if transfer.fitted else "held back")
    return rows


def _refused(report: "TransferReport") -> Table:
    rows = Table.of(">rows", "refused, because", title="rows refused")
    for reason, count in report.refused.items():
        rows.add_row(str(count), reason)
    return rows


def _write_transfers(path: Path | None, report: "TransferReport") -> None:
    from benchmarks.research.transfers import median_ape

    write_json(path, {
        "held_back_median_ape": median_ape(report.held_back), "median_ape": median_ape(report.transfers),
        "transfers": [{"series": transfer.row.series, "connector": transfer.row.plugin, "tokens": transfer.row.tokens,
                       "bytes": transfer.row.bytes, "seconds": transfer.row.seconds, "predicted": transfer.predicted,
                       "error": transfer.error, "fitted": transfer.fitted} for transfer in report.transfers],
        "refused": report.refused})


@app.command("wide_ep")
def wide_ep(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of deployments, as large_ep.csv")],
    markdown: Annotated[bool, typer.Option(help="print the table as Markdown")] = False,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Price a step of public deployments that spread experts over many GPUs, beside their tokens per second.

    Nothing is fitted to them.  Ratios are of predicted to measured tokens per second: with expected values, with
    experts drawn rank by rank and, where two batches overlap, with expected values and one batch.
    """
    from benchmarks.research.wide_ep import validate

    report = validate(path)
    rows = [_wide_ep_row(result) for result in report.results]
    if markdown:
        lines = [f"| {' | '.join(title.lstrip('>') for title in _WIDE_EP)} |",
                 f"|{'|'.join('--:' if title.startswith('>') else '---' for title in _WIDE_EP)}|"]
        print("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]))
    else:
        table = Table.of(*_WIDE_EP, title="one step of one rank", hide=("most of the step", "90 %"))
        for row in rows:
            table.add_row(*row)
        console().print(table)
    for who, why in report.left_out.items():
        say(f"left out: {who}: {why}")
    for result in report.results:
        if result.shortage:
            say(f"{result.case.name}: {result.shortage}")
    write_json(json_file, {"results": [{
        "case": result.case.name, "measured": result.measured, "predicted": result.predicted, "ratio": result.ratio,
        "one_batch": result.ratio_of(result.undivided), "drawn": result.ratio_of(result.drawn),
        "exchanged_share": result.exchanged, "seconds": result.parts}
        for result in report.results], "left_out": report.left_out})
    within = sum(abs(result.ratio - 1) <= WIDE_EP_GOAL for result in report.results)
    say(f"tokens per second of {within} of {len(report.results)} cases are within {WIDE_EP_GOAL:.0%}")


_WIDE_EP = ("deployment", ">tokens/s a GPU", ">predicted", ">ratio", ">90 %", ">drawn", ">one batch", ">exchange",
            "most of the step")
#: The goal of wide expert parallelism: the relative error of tokens per second.
WIDE_EP_GOAL = 0.2


def _wide_ep_row(result: "Result") -> tuple[str, ...]:
    low, high = result.bounds
    most = ", ".join(f"{name} {seconds / result.step.seconds:.0%}" for name, seconds in [*result.parts.items()][:3])
    alone = f"{result.ratio_of(result.undivided):.2f}" if result.case.two_batch else ""
    return (result.case.name, f"{result.measured:,.0f}", f"{result.predicted:,.0f}", _judged(result.ratio),
            f"{low:.2f}-{high:.2f}", _judged(result.ratio_of(result.drawn)), alone, f"{result.exchanged:.0%}", most)


def _judged(ratio: float) -> str:
    """*ratio*, in bold where it misses the goal."""
    return f"{ratio:.2f}" if abs(ratio - 1) <= WIDE_EP_GOAL else f"**{ratio:.2f}**"


@app.command()
def kernels(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder of public tables of kernels, or one file")],
    gpu: Annotated[str, typer.Option(help="predict only this GPU")] = "",
    leave_out: Annotated[str, typer.Option("--leave-out", metavar="GPU|ARCHITECTURE", help="predict it from the other"
                                           " architectures at PATH")] = "",
    train: Annotated[str, typer.Option(metavar="GPU,GPU", help="learn from these GPUs, and predict the others at"
                                       " PATH")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Compare what the GPUs of other architectures teach the oracle `learned` with measured kernels."""
    from benchmarks.research.learning import validate_apart
    from ksim.cli.validate import show_kernels

    with status("reading") as line:
        report = validate_apart(path, gpu, leave_out, words_of(train), lambda name: line.update(f"predicting {name}"))
    show_kernels(report, json_file)
