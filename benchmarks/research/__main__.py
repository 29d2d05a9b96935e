"""`python -m benchmarks.research silicon FILE`: errors of simulations of measured serving runs.

`python -m benchmarks.research ladders FILE`: load ladders of fleets, predicted beside measured.

`python -m benchmarks.research public PATH`: whole deployments with time, watts and joules, and offline maxima.

`python -m benchmarks.research serving|steps|energy|transfers PATH`: see benchmarks/research/measured.py.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.research import measured
from ksim.cli.flags import JsonFile, Wide, console, say, status, write_json
from ksim.cli.help import App
from ksim.foundation.errors import KsimError
from ksim.views.tables import Table

if TYPE_CHECKING:
    from benchmarks.research.board_power import Fit
    from benchmarks.research.ladders import Cell, Compared, LadderReport
    from benchmarks.research.public import Answer as PublicAnswer
    from benchmarks.research.public import Score as PublicScore
    from benchmarks.research.silicon import Answer, Score, SiliconReport
    from benchmarks.research.silicon.runs import Error, Quantity

app = App(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
          help="Compare ksim with public tables of runs and ladders, and with measurements of single machines.")
app.add_typer(measured.app)


@app.command()
def silicon(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured runs, as silicon_dev.parquet")],
    backend: Annotated[str, typer.Option(help="only runs of this engine: vllm, sglang or trtllm")] = "",
    model: Annotated[str, typer.Option(help="only runs of models with this in their path")] = "",
    system: Annotated[str, typer.Option(help="only runs on this system, as the table calls it")] = "",
    limit: Annotated[int, typer.Option(min=0, help="only so many runs, drawn by the hashes of their groups; 0 takes"
                                       " all")] = 0,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="also runs with flags, copies, and disaggregated ones"
                                           " without a table of worker counts")] = False,
    mode: Annotated[str, typer.Option(metavar="agg|disagg", help="only runs whose engines prefill and decode, or only"
                                      " disaggregated ones")] = "",
    workers: Annotated[Path | None, typer.Option(metavar="FILE", help="worker counts of disaggregated runs; by default"
                                                 " silicon_join.csv beside FILE or in ../cluster")] = None,
    statistic: Annotated[str, typer.Option(metavar="mean|median", help="statistic of TTFT and TPOT over requests; by"
                                           " default the one that each source states")] = "",
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="another simulator's answers; by default"
                                                   " AIConfigurator's, if they lie beside FILE")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="number of processes; by default one per core")] = 0,
    show: Annotated[str, typer.Option(metavar="ID", help="print the scenario of this row, and stop")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Simulate measured serving runs, and compare TTFT, TPOT and, of disaggregated ones, output tokens per second."""
    from benchmarks.research.silicon import Question, find, scenario, validate
    from ksim.foundation.config import structure

    if show:
        print(scenario(find(path, show, workers)).to_toml(), end="")
        return
    question = structure(Question, {
        "path": path, "backend": backend, "model": model, "system": system, "mode": mode, "workers": workers,
        "limit": limit, "all_rows": all_rows, "statistic": statistic, "reference": reference,
        "jobs": jobs or os.cpu_count() or 1}, "silicon")
    with status("reading") as line:
        report = validate(question, lambda done, of: line.update(f"simulated {done:,} of {of:,} runs"))
    _print(report)
    _write(json_file, report, question.statistic)
    say(_figures(report.whole))


def _print(report: "SiliconReport") -> None:
    screen = console()
    screen.print(_scores(report.groups, "errors by kind of run"))
    screen.print(_scores(report.backends, "errors by engine"))
    if report.tiers:
        screen.print(_tiers(report.tiers))
    if report.reasons:
        screen.print(_reasons(report))


def _scores(scores: "tuple[Score, ...]", title: str) -> Table:
    half = (">ours", ">bias %", ">median", ">mean", ">AIC median", ">mean")
    rows = Table.of("runs", ">rows", ">played", ">TTFT ms", *half, ">TPOT ms", *half, title=title,
                    hide=("mean", "AIC median", "bias %", "rows"))
    for score in scores:
        name = " ".join(part.rpartition("/")[2] for part in score.name)
        rows.add_row(name, str(score.rows), str(score.answered), *_cells(score.ttft), *_cells(score.tpot))
    return rows


def _tiers(scores: "tuple[Score, ...]") -> Table:
    """Disaggregated runs, with how sure their deployments are."""
    rows = Table.of("disaggregated runs", ">played", *(f"{name} %" for what in ("TTFT", "TPOT", "tokens/s/GPU")
                                                    for name in (f">{what} bias", ">median")),
                    title="errors by engine, GPU and tier", hide=("median %",))
    for score in scores:
        errors = [quantity.error for quantity in (score.ttft, score.tpot, score.throughput)]
        rows.add_row(" ".join(score.name), str(score.answered),
                     *(cell for error in errors for cell in (["", ""] if error is None else
                                                             [f"{error.bias:+.1f}", f"{error.median:.1f}"])))
    return rows


def _cells(quantity: "Quantity") -> list[str]:
    """Half of a row: medians in milliseconds, our errors in per cent, and those of the other simulator."""
    times = ["" if time is None else f"{1e3 * time:.4g}" for time in (quantity.measured, quantity.predicted)]
    error, other = quantity.error, quantity.reference
    own = ["", "", ""] if error is None else [f"{error.bias:+.1f}", f"{error.median:.1f}", f"{error.mean:.1f}"]
    return [*times, *own, *(["", ""] if other is None else [f"{other.median:.1f}", f"{other.mean:.1f}"])]


def _reasons(report: "SiliconReport") -> Table:
    rows = Table.of(">rows", "not played, because", title="rows not played")
    for reason, count in report.reasons.items():
        rows.add_row(str(count), reason)
    return rows


def _figures(score: "Score") -> str:
    ttft, tpot = score.ttft, score.tpot
    if ttft.error is None or tpot.error is None:
        return f"played 0 of {score.rows} runs"
    text = (f"played {score.answered} of {score.rows} runs: TTFT {ttft.error.median:.1f} % off (median; mean"
            f" {ttft.error.mean:.1f}), TPOT {tpot.error.median:.1f} % (mean {tpot.error.mean:.1f})")
    if not (ttft.reference and tpot.reference and ttft.same and tpot.same):
        return text
    return (f"{text}; on the {score.referred} that AIConfigurator answers, TTFT {ttft.same.median:.1f} % (its"
            f" {ttft.reference.median:.1f}), TPOT {tpot.same.median:.1f} % (its {tpot.reference.median:.1f})")


def _write(path: Path | None, report: "SiliconReport", statistic: str) -> None:
    outcome = {**_summary(report.whole), "not_played": report.reasons,
               "by_backend": [_summary(score) for score in report.backends],
               "by_tier": [_summary(score) for score in report.tiers],
               "by_run": [_summary(score) for score in report.groups],
               "rows": [_row(answer, report, statistic) for answer in report.answers]}
    write_json(path, outcome)


def _summary(score: "Score") -> dict[str, Any]:
    """A score as plain values: errors in per cent, times in milliseconds; None where there are none."""
    summary: dict[str, Any] = {"name": list(score.name), "runs": score.rows, "answered": score.answered,
                               "reference_answered": score.referred}
    for name, quantity in (("ttft", score.ttft), ("tpot", score.tpot)):
        summary |= _errors(name, quantity.error) | _errors(f"reference_{name}", quantity.reference)
        summary |= _errors(f"{name}_where_referred", quantity.same)
        for what, seconds in (("measured", quantity.measured), ("predicted", quantity.predicted)):
            summary[f"{what}_median_{name}_ms"] = None if seconds is None else 1e3 * seconds
    return summary | _errors("throughput", score.throughput.error) | _errors("energy", None)  # nobody measured joules


def _errors(name: str, error: "Error | None") -> dict[str, float | None]:
    values = (None, None, None) if error is None else (error.median, error.mean, error.bias)
    return {f"{name}_{what}": value for what, value in
            zip(("median_ape", "mean_ape", "median_error"), values, strict=True)}


def _row(answer: "Answer", report: "SiliconReport", statistic: str) -> dict[str, Any]:
    row = answer.row
    rates = answer.rates
    outcome: dict[str, Any] = {"id": row.id, "reason": answer.reason or None, "seconds": round(answer.took, 3),
                               "output_tokens_per_second_per_gpu": answer.throughput,
                               "throughput_ape": rates and 100 * abs(rates[0] / rates[1] - 1)}
    for place, name in enumerate(("ttft", "tpot")):
        measured, reference = getattr(row, name), report.reference.get(row.id)
        predicted = None if answer.reason else answer.predicted(name, statistic)
        latency = getattr(answer, name)
        outcome |= {f"measured_{name}_ms": 1e3 * measured, f"predicted_{name}_ms": predicted and 1e3 * predicted,
                    f"{name}_ape": predicted and 100 * abs(predicted / measured - 1),
                    f"predicted_mean_{name}_ms": latency and 1e3 * latency.mean,
                    f"predicted_median_{name}_ms": latency and 1e3 * latency.median,
                    f"reference_{name}_ms": reference and 1e3 * reference[place]}
    return outcome


#: The columns of the table on the screen; the JSON file has all.
_SHOWN = ("req_s", "out_tok_s", "total_tok_s", "ttft_mean_s", "ttft_p90_s", "e2e_mean_s", "tpot_mean_ms")


@app.command()
def ladders(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="table of measured ladders, as ladders.csv")],
    ladder: Annotated[str, typer.Option(help="only ladders with this in their names")] = "",
    arm: Annotated[str, typer.Option(help="only arms with this in their names")] = "",
    recipes: Annotated[Path | None, typer.Option(metavar="FILE", help="how ladders were set up that ksim does not"
                                                 " know: a file like benchmarks/research/recipes/ladders.toml")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of arrivals and of the order of prompts")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="number of processes; by default one per core")] = 0,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Simulate load ladders of fleets, and compare rates and latencies, stage by stage.

    A second table has the rates at which queues begin, and what one arm of a ladder gains over another.
    """
    from benchmarks.research.ladders import Question, validate

    with status("reading") as line:
        report = validate(Question(path, ladder, arm, recipes, seed, jobs or os.cpu_count() or 1),
                          lambda done, of: line.update(f"simulated {done:,} of {of:,} arms"))
    console().print(_ladder_cells(report))
    if report.compared:
        console().print(_compared(report))
    for reason, count in report.reasons.items():
        say(f"{count} rows not simulated: {reason}")
    write_json(json_file, {"rows": [_ladder_row(cell) for cell in report.cells], "compared": [
        _what(line) for line in report.compared], "not_simulated": dict(report.reasons)})
    say(f"simulated {len(report.cells)} of {len(report.cells) + sum(report.reasons.values())} rows")


def _ladder_cells(report: "LadderReport") -> Table:
    rows = Table.of("ladder", "arm", ">rate", *(f">{name}" for name in _SHOWN), title="predicted / measured",
                    hide=_SHOWN[:1:-1])
    for cell in report.cells:
        row = cell.row
        stage = row.stage if isnan(row.rate) else f"{row.rate:g}"
        rows.add_row(f"{row.ladder} {row.run}", row.arm, stage,
                     *(_beside(cell, name) for name in _SHOWN))
    return rows


def _compared(report: "LadderReport") -> Table:
    rows = Table.of("ladder", "what", ">measured", ">predicted", ">error %", title="queues and gains")
    for line in report.compared:
        rows.add_row(f"{line.ladder} {line.run}", line.what, f"{line.measured:.4g}",
                     f"{line.predicted:.4g}", f"{line.error:+.1f}")
    return rows


def _what(line: "Compared") -> Mapping[str, Any]:
    return {"ladder": line.ladder, "run": line.run, "what": line.what, "measured": line.measured,
            "predicted": line.predicted, "error": line.error}


def _beside(cell: "Cell", name: str) -> str:
    measured = cell.row.measured.get(name)
    return f"{cell.predicted[name]:.4g}" + ("" if measured is None else f" / {measured:.4g}")


def _ladder_row(cell: "Cell") -> Mapping[str, Any]:
    row = cell.row
    return {"ladder": row.ladder, "run": row.run, "arm": row.arm, "stage": row.stage,
            "rate": None if isnan(row.rate) else row.rate, "measured": dict(row.measured),
            "predicted": dict(cell.predicted), "errors": cell.errors}


@app.command()
def public(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="ml_energy_v3.csv, trtllm_perf_overview.csv, or a folder"
                                         " with them")],
    model: Annotated[str, typer.Option(help="only models with this in their names")] = "",
    gpu: Annotated[str, typer.Option(help="only this GPU")] = "",
    fit: Annotated[bool, typer.Option("--fit", help="fit the power of the GPU to rows that are marked for it, at their"
                                      " measured times, print it, and stop; needs --gpu")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="number of processes; by default one per core")] = 0,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Simulate public measurements of whole deployments, and compare rates, ITL, watts and joules a token."""
    from benchmarks.research.public import SteadyState, answers, read, scores
    from ksim.foundation.errors import ConfigError

    rows = [row for row in read(path) if model in row.model and gpu.lower() in ("", row.gpu.lower())]
    if not rows:
        raise ConfigError(str(path), "has no row that is asked for; see --model and --gpu")
    if fit:
        from benchmarks.research.board_power import fit as fitted

        _print_fit(fitted(gpu.lower(), [row for row in rows if isinstance(row, SteadyState)]))
        return
    found: list[PublicAnswer] = []
    with status("simulating") as line:
        for each in answers(rows, jobs or os.cpu_count() or 1):
            found.append(each)
            line.update(f"simulated {len(found):,} of {len(rows):,} rows")
    console().print(_public_scores(scores(found)))
    reasons = Counter(each.reason for each in found if each.reason)
    for reason, count in reasons.items():
        say(f"{count} rows not simulated: {reason}")
    write_json(json_file, {"rows": [_public_row(each) for each in found if not each.reason], "not_simulated": reasons})
    say(f"simulated {len(found) - sum(reasons.values())} of {len(found)} rows")


def _public_scores(scores: "list[PublicScore]") -> Table:
    titles = {"rate": "tokens/s", "itl": "ITL", "watts": "W", "joules": "J/output token"}
    rows = Table.of("GPU", "rows of", "", ">rows", *(f">{title} {what}" for title in titles.values()
                                                    for what in ("bias", "median")), ">covered",
                    title="errors in per cent: median signed, median absolute")
    for score in scores:
        cells = [cell for name in titles for cell in (
            [f"{score.errors[name][0]:+.1f}", f"{score.errors[name][1]:.1f}"] if name in score.errors else ["", ""])]
        rows.add_row(*score.name, str(score.rows), *cells, "" if score.covered is None else f"{score.covered:.0%}")
    return rows


def _public_row(answer: "PublicAnswer") -> Mapping[str, Any]:
    from attrs import asdict

    assert answer.predicted is not None, "only predictions have figures"
    figures = {name: value for name, value in asdict(answer.row.measured).items() if not isnan(value)}
    return {"row": answer.row.name, "fitted": answer.row.fitted, "seconds": round(answer.took, 3), "measured": figures,
            "predicted": {name: getattr(answer.predicted, name) for name in figures},
            "errors": {name: answer.error(name) for name in figures}}


def _print_fit(fit: "Fit") -> None:
    import numpy as np

    say(f"{fit.gpu}: " + ", ".join(f"{name} {watts:.4g}{'' if name == 'flop' else ' W'}" for name, watts in
                                   fit.watts.items()) + " (flop: over the file's joules)")
    for name, errors in (("fitted", fit.fitted), ("apart", fit.apart)):
        if len(errors):
            say(f"watts of {len(errors)} rows {name}: {100 * np.median(errors):+.1f} %, absolute median"
                f" {100 * np.median(abs(errors)):.1f} %, 90th percentile {100 * np.quantile(abs(errors), 0.9):.1f} %")


def main() -> None:
    """Run the command line; an error that the user can correct is one line."""
    try:
        app(prog_name="python -m benchmarks.research")
    except KsimError as error:
        sys.exit(f"ksim: {error}")


if __name__ == "__main__":
    main()
