"""`python -m benchmarks.accuracy RUNS SILICON [LIMIT]`: write the tables of whole runs in docs/evidence/accuracy.md.

The ladders lie in the folder `cluster` beside that of the public runs.  `python -m benchmarks.accuracy ladders FILE
[BEGIN]` writes theirs alone, or that of ladders whose names begin so: "pd-", "ob-" or "cpu-offload-".
`python -m benchmarks.accuracy whole` adds the tables of whole runs up to the first of the page, and plays nothing.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path

import numpy as np
from attrs import evolve
from rich.console import Console

from benchmarks.pages import put
from benchmarks.research import ladders, silicon
from benchmarks.research.serving import comparison
from benchmarks.research.serving.recordings import ServerSpec
from benchmarks.research.silicon.runs import Error, Quantity, Score, backend_of, scores, tier_of
from ksim.foundation.config import Choice

PAGE = Path("docs/evidence/accuracy.md")
#: What is bold is worse than this, in per cent: TTFT, TPOT, throughput and energy of our H200; a step's time.
GOALS = {"ttft_p50_ms": 6.0, "tpot_p50_ms": 3.0, "throughput": 2.0, "joules": 8.0}
STEPS = (3.0, 10.0)
#: TTFT and TPOT by backend.
SILICON = {"vllm": (20.0, 8.0), "trtllm": (30.0, 12.0), "sglang": (30.0, 12.0)}
#: TTFT, TPOT and throughput of disaggregated runs, and the tiers whose deployments are sure.
SPLIT, SURE = (35.0, 12.0, 12.0), ("exact_mean", "recipe", "recipe+median", "median")
#: What is bold in ladders: a larger factor than repeated runs differ by in throughput, and stacks in latency.
NOISE = {"req_s": 1.08, "out_tok_s": 1.08, "total_tok_s": 1.08, "ttft_mean_s": 2.8, "ttft_p90_s": 2.8,
         "ttft_p95_s": 2.8, "e2e_mean_s": 1.35, "e2e_p90_s": 1.35, "e2e_p95_s": 1.35, "tpot_mean_ms": 1.35,
         "itl_mean_ms": 1.35}
#: Ladders by what their names begin with: their table on the page, and what is bold.  Arms of one run share a stack.
LADDERS = {"pd-": ("ladders", NOISE), "ob-": ("routing", dict.fromkeys(NOISE, 1.2)),
           "cpu-offload-": ("offload", dict.fromkeys(NOISE, 1.2))}
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}


def main(arguments: Sequence[str]) -> None:
    """Play all that is measured again, of public runs LIMIT; all thousand take two cores over half an hour."""
    if arguments[0] == "ladders":
        _ladders(Path(arguments[1]), *arguments[2:])
        return
    if arguments[0] == "whole":
        put(PAGE, "whole", whole(PAGE.read_text(encoding="utf-8")))
        return
    runs, public = (Path(argument) for argument in arguments[:2])
    limit = int(arguments[2]) if len(arguments) > 2 else 0
    console = Console()
    console.print("serving runs")
    put(PAGE, "serving", _serving(runs))
    console.print("steps")
    put(PAGE, "steps", _steps(runs))
    console.print("public runs")
    put(PAGE, "silicon", _silicon(public, limit))
    console.print("disaggregated runs")
    put(PAGE, "split", split(silicon.validate(silicon.Question(path=public, mode="disagg", jobs=2, limit=limit))))
    put(PAGE, "whole", whole(PAGE.read_text(encoding="utf-8")))
    console.print("ladders")
    _ladders(public.parent.parent / "cluster/ladders.csv")


def _ladders(measured: Path, begin: str = "") -> None:
    """Takes two cores a quarter of an hour."""
    for names, (table, bold) in LADDERS.items():
        if names.startswith(begin):
            put(PAGE, table, laddered(ladders.validate(ladders.Question(measured, names, jobs=2)), bold))


def _medians(label: str, report: comparison.ServingReport) -> str:
    figures = [f"{report.median_ape(name):.1f}" for name in (*GOALS, "ttft_p90_ms", "itl_p99_ms")]
    return f"| {label} | {len(report.runs)} | {' | '.join(figures)} |"


def _serving(folder: Path) -> Iterator[str]:
    """Medians by oracle, then every run."""
    reports = {oracle: comparison.serving(folder, ServerSpec(oracle=Choice(oracle)))
               for oracle in ("measured", "learned")}
    yield "| median absolute error over runs | runs | TTFT | TPOT | throughput | energy | TTFT p90 | ITL p99 |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for oracle, report in reports.items():
        yield _medians(f"`{oracle}`", report)
    for name in dict.fromkeys(run.recording for run in reports["measured"].runs):
        own = tuple(run for run in reports["measured"].runs if run.recording == name)
        yield _medians(f"`measured`, {name}", evolve(reports["measured"], runs=own))
    yield ""
    yield "| recording | run | TTFT p50: ms, error | TTFT p90 | TPOT p50: ms, error | ITL p99 | throughput | energy |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for run in reports["measured"].runs:
        errors = run.errors
        cells = [f"{run.measured.ttft_p50_ms:.4g}, {marked(errors.ttft_p50_ms, GOALS['ttft_p50_ms'])}",
                 marked(errors.ttft_p90_ms, GOALS["ttft_p50_ms"]),
                 f"{run.measured.tpot_p50_ms:.4g}, {marked(errors.tpot_p50_ms, GOALS['tpot_p50_ms'])}",
                 marked(errors.itl_p99_ms, np.inf), marked(errors.throughput, GOALS["throughput"]),
                 marked(errors.joules, GOALS["joules"])]
        yield f"| {run.recording} | {run.run} | {' | '.join(cells)} |"


def marked(error: float, goal: float) -> str:
    """A signed error in per cent, bold where it is beyond its goal."""
    if isnan(error):
        return "-"
    return f"**{error:+.1f}**" if abs(error) > goal else f"{error:+.1f}"


def _steps(folder: Path) -> Iterator[str]:
    """Every recording's steps, and those of each run."""
    report = comparison.intervals(folder, ServerSpec())
    yield "| recording | run | steps | median | 90th percentile | bias |"
    yield "|---|---|--:|--:|--:|--:|"
    errors = report.errors
    yield f"| all | | {len(errors):,} | {_spread(errors)} |"
    for name, run, steps, _ in report.runs:
        yield f"| {name} | {run} | {len(steps):,} | {_spread(np.array([step.error for step in steps]))} |"


def _spread(errors: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> str:
    middle, late = float(np.median(np.abs(errors))), float(np.quantile(np.abs(errors), 0.9))
    cells = [f"**{value:.1f}**" if value > goal else f"{value:.1f}"
             for value, goal in zip((middle, late), STEPS, strict=True)]
    return f"{' | '.join(cells)} | {np.median(errors):+.1f}"


def _silicon(path: Path, limit: int) -> Iterator[str]:
    """Every backend, then every kind of run."""
    report = silicon.validate(silicon.Question(path=path, mode="agg", jobs=2, limit=limit))
    if limit:
        yield f"Of {len(report.answers)} rows, drawn by the hash of their groups (`--limit {limit}`):"
        yield ""
    yield ("| runs | rows | answered | TTFT: median, mean (bias) | AIConfigurator's | TPOT: median, mean (bias) |"
           " AIConfigurator's |")
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for score in (*report.backends, *report.groups):
        yield _scored(score)
    for reason, count in report.reasons.items():
        yield f"| not played: {reason} | {count} | | | | | |"


def split(report: silicon.SiliconReport) -> Iterator[str]:
    """The sure tiers together and by engine, then every engine, GPU and tier, then what was not played."""
    answered = [answer for answer in report.answers if not answer.reason]
    sure = [answer for answer in answered if answer.row.split and answer.row.split.tier in SURE]
    yield ("| disaggregated runs | rows | TTFT: median, mean (bias) | TPOT: median, mean (bias) |"
           " tokens/s/GPU: median, mean (bias) |")
    yield "|---|--:|--:|--:|--:|"
    for key in (lambda _: ("all of the four sure tiers",), backend_of):
        yield from map(_compared, scores(sure, key, "", {}))
    yield from map(_compared, scores(answered, tier_of, "", {}))
    for reason, count in report.reasons.items():
        yield f"| not played: {reason} | {count} | | | |"


def _compared(score: Score) -> str:
    errors = [quantity.error for quantity in (score.ttft, score.tpot, score.throughput)]
    cells = [_told(error, error is not None and error.median > goal) for error, goal in zip(errors, SPLIT, strict=True)]
    return f"| {' '.join(score.name)} | {score.answered} | {' | '.join(cells)} |"


def whole(page: str) -> Iterator[str]:
    """Mean errors by GPU and engine, out of the tables of *page*; in brackets medians, where these tables have them."""
    yield "| GPU | engine | runs | TTFT | TPOT | output tokens/s | energy |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    summary, _, runs = _table(page, "serving").partition("\n\n")
    (medians,) = (cells[2:6] for cells in _rows(summary) if cells[0] == "`measured`")
    ends = [[cells[column].split(", ")[-1] for column in (2, 4, 6, 7)] for cells in _rows(runs)]
    errors = [[abs(float(end)) if end != "-" else nan for end in row] for row in ends]
    means = [f"{mean:.1f} ({median})" for mean, median in zip(np.nanmean(errors, axis=0), medians, strict=True)]
    yield f"| H200, ours | vLLM 0.22 | {len(errors)} | {' | '.join(means)} |"
    for table, kind, columns in (("silicon", "", (3, 5)), ("split", ", disaggregated", (2, 3, 4))):
        rows = [(cells[0].removesuffix(" disagg").split(), int(cells[1]), [cells[column] for column in columns])
                for cells in _rows(_table(page, table)) if cells[1].isdigit() and not cells[0].startswith("not ")]
        for engine, name in ENGINES.items():
            yield from _by_gpu([row for row in rows if engine in row[0]], f"{name}{kind}")


def _by_gpu(rows: Sequence[tuple[Sequence[str], int, Sequence[str]]], engine: str) -> Iterator[str]:
    """The row of all GPUs, which has medians, then the mean of each GPU over the groups of its runs."""
    gpus: dict[str, list[tuple[int, list[float]]]] = {}
    for words, count, cells in rows:
        medians, means = zip(*(cell.partition(" (")[0].split(", ") for cell in cells), strict=True)
        missing = " - |" * (4 - len(cells))
        if len(words) == 1:
            both = [f"{mean} ({median})" for mean, median in zip(means, medians, strict=True)]
            yield f"| all | {engine} | {count} | {' | '.join(both)} |{missing}"
        else:  # of MODEL GPU ENGINE FORMAT, or of ENGINE GPU TIER
            gpus.setdefault(words[1].removesuffix("_sxm").upper(), []).append((count, [*map(float, means)]))
    for gpu, groups in sorted(gpus.items()):
        counts, errors = zip(*groups, strict=True)
        figures = [f"{error:.1f}" for error in np.average(errors, axis=0, weights=counts)]
        yield f"| {gpu} | {engine} | {sum(counts)} | {' | '.join(figures)} |{missing}"


def _table(page: str, name: str) -> str:
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def _rows(table: str) -> list[list[str]]:
    """The cells below a table's heading, without what makes them bold."""
    below = table.replace("**", "").partition("\n|---")[2].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in below]


def laddered(report: ladders.LadderReport, bold: Mapping[str, float]) -> Iterator[str]:
    """Every stage, predicted beside measured, with the error in per cent; what was not simulated; then gains."""
    shown = {name: factor for name, factor in bold.items() if any(name in cell.errors for cell in report.cells)}
    yield f"| ladder | arm | requests/s | {' | '.join(shown)} |"
    yield f"|---|---|--:|{'--:|' * len(shown)}"
    for cell in report.cells:
        row = cell.row
        rate = f"{row.rate:g}" if row.stage == "rate" else row.stage
        cells = [_beside(cell, what, factor) for what, factor in shown.items()]
        yield f"| {_called(row.ladder, row.run)} | {row.arm} | {rate} | {' | '.join(cells)} |"
    for reason, count in report.reasons.items():
        yield f"| {count} rows not simulated: {reason} | | | {' | '.join('' for _ in shown)} |"
    if report.compared:
        yield from _gained(report.compared)


def _called(ladder: str, run: str) -> str:
    """A ladder's name without those of its GPU and engine, and its run."""
    return f"{re.sub(r'-vllm|-h[12]00|-gpt-oss-120b-h200', '', ladder)} {run}"


def _gained(lines: Sequence[ladders.Compared]) -> Iterator[str]:
    """Where queues begin, and what arms gain; throughputs that are off by more than 15 % and TTFTs by 20 are bold."""
    yield ""
    yield "| ladder | what | measured | predicted | error |"
    yield "|---|---|--:|--:|--:|"
    for line in lines:
        goal = 20.0 if line.what.startswith("ttft") or line.ladder.startswith("cpu-offload") else 15.0
        yield (f"| {_called(line.ladder, line.run)} | {line.what} | {line.measured:.3g} | {line.predicted:.3g} |"
               f" {marked(line.error, goal)} |")


def _beside(cell: ladders.Cell, name: str, noise: float) -> str:
    if name not in cell.errors:
        return "-"
    predicted, measured = cell.predicted[name], cell.row.measured[name]
    beyond = max(predicted / measured, measured / predicted) > noise
    return f"{predicted:.3g} / {measured:.3g}, {marked(cell.errors[name], 0.0 if beyond else np.inf)}"


def _scored(score: Score) -> str:
    backend = next(name for name in score.name if name in SILICON)
    cells = [cell for quantity, goal in zip((score.ttft, score.tpot), SILICON[backend], strict=True)
             for cell in _quantity(quantity, goal)]
    return f"| {' '.join(score.name)} | {score.rows} | {score.answered} | {' | '.join(cells)} |"


def _quantity(quantity: Quantity, goal: float) -> tuple[str, str]:
    failing = quantity.error is not None and quantity.error.median > goal
    return _told(quantity.error, failing), _told(quantity.reference)


def _told(error: Error | None, failing: bool = False) -> str:
    """Median, mean and bias, bold where they are *failing*."""
    text = "-" if error is None else f"{error.median:.1f}, {error.mean:.1f} ({error.bias:+.1f})"
    return f"**{text}**" if failing else text


if __name__ == "__main__":
    main(sys.argv[1:])
