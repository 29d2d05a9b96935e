"""Ever more requests of one kind, streamed: CPU time per output token and memory, which both should stay.

`python -m benchmarks.scaling COUNT` runs so many requests and prints what it took, as one line of JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count as numbers
from itertools import islice

from benchmarks.apart import Figures, best, measured, peak_megabytes
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.workloads import conversations
from benchmarks.yardstick import STANDARD, beside, scaled
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import stream_requests

SIZES = (5_000, 50_000, 200_000, 1_000_000)
#: Without being asked for, no more requests than so many, and none for longer than so many CPU seconds.
USUAL, PATIENCE = 200_000, 60.0
#: Requests for which memory is extrapolated.
FAR = 10_000_000
COLUMNS = ("requests", "output tokens", "CPU s", "us/output token", "scaled", "peak MB", "SimPy us/event")
SMALLEST, LARGEST, FLAT, MEMORY = (
    Goal("5,000 requests, streamed", 0.35, "us/output token"), Goal("most requests, streamed", 0.35, "us/output token"),
    Goal("most requests over 5,000: us/output token", 1.1, "times", timed=False),
    Goal("10,000,000 requests, by the slope of the last two", 2000, "MB", timed=False))


def findings(most: int | None = None) -> Findings:
    """Every size up to *most*, whatever that takes; else those that do not take long."""
    found: list[tuple[Figures, float]] = []
    for size in SIZES:
        if size <= (most or USUAL) and (most or _foreseen(found, size) < PATIENCE):
            found.append(beside(partial(best, partial(measured, "benchmarks.scaling", str(size)), "seconds",
                                        3 if size == SIZES[0] else 1)))
    title = f"The workload w5000 over and over, streamed; scaled to {STANDARD} us for an event of SimPy"
    return Findings([Sheet(title, COLUMNS, [_row(*each) for each in found])], _judged(found))


def _foreseen(found: Sequence[tuple[Figures, float]], size: int) -> float:
    """CPU seconds that so many requests will take, going by the last size."""
    return found[-1][0]["seconds"] * size / found[-1][0]["requests"] if found else 0.0


def _row(figures: Figures, yardstick: float) -> tuple[str, ...]:
    token = _per_token(figures)
    return (f"{figures['requests']:,.0f}", f"{figures['tokens']:,.0f}", f"{figures['seconds']:.1f}", f"{token:.2f}",
            f"{scaled(token, yardstick):.2f}", f"{figures['megabytes']:.0f}", f"{yardstick:.2f}")


def _judged(found: Sequence[tuple[Figures, float]]) -> list[tuple[str, ...]]:
    (small, slow), (large, fast) = found[0], found[-1]
    paced = scaled(_per_token(large), fast) / scaled(_per_token(small), slow)
    rows = [SMALLEST.judged(_per_token(small), slow), LARGEST.judged(_per_token(large), fast), FLAT.judged(paced, fast)]
    if len(found) > 1:
        rows.append(MEMORY.judged(_extrapolated(found[-2][0], large), fast))
    return rows


def _per_token(figures: Figures) -> float:
    """Microseconds."""
    return 1e6 * figures["seconds"] / figures["tokens"]


def _extrapolated(small: Figures, large: Figures) -> float:
    """The peak in MB with `FAR` requests, if it goes on growing as between these two runs."""
    slope = (large["megabytes"] - small["megabytes"]) / (large["requests"] - small["requests"])
    return large["megabytes"] + slope * (FAR - large["requests"])


def _measure(count: int) -> Figures:
    """Stream *count* requests; seconds are CPU time of the run and of writing it."""
    scenario = Scenario.of(conversations())
    rows = list(scenario.workload.requests(scenario.seed))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        summary = stream_requests(Deployment.of(scenario), islice(_over_and_over(rows), count), f"{folder}/run").summary
        seconds = time.process_time() - begin
    return {"requests": summary["completed"], "tokens": summary["total_output_tokens"], "seconds": seconds,
            "megabytes": peak_megabytes()}


def _over_and_over(rows: Sequence[Request]) -> Iterator[Request]:
    """*rows*, and again after the mean time between two of them, without end."""
    period = rows[-1].arrival * len(rows) / (len(rows) - 1)
    for number in numbers():
        lap, place = divmod(number, len(rows))
        row = rows[place]
        yield Request(number, lap * period + row.arrival, row.prompt, row.output)


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
