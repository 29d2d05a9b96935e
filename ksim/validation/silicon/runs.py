"""Play measured runs again, several at a time."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from attrs import frozen

from ksim.foundation.errors import KsimError
from ksim.simulation.simulate import simulate
from ksim.validation.silicon.recipes import NotRun, recipes, scenario
from ksim.validation.silicon.rows import Row
from ksim.validation.silicon.waves import mean, median, weights


@frozen
class Latency:
    """Seconds: two statistics over the requests of a run."""

    mean: float
    median: float


@frozen
class Answer:
    """What ksim says of a row: latencies in seconds, tokens per second and GPU; or the `reason` why it says nothing.

    `took` is the seconds that the simulation did.
    """

    row: Row
    reason: str = ""
    ttft: Latency | None = None
    tpot: Latency | None = None
    throughput: float | None = None
    took: float = 0.0

    def predicted(self, what: str, statistic: str = "") -> float:
        """TTFT or TPOT in seconds, by *statistic*, or else by the one that the row's source states."""
        latency: Latency = getattr(self, what)
        value: float = getattr(latency, statistic or recipes().source(self.row)[1].statistic)
        return value


def answer(row: Row) -> Answer:
    """Play *row*."""
    began = time.perf_counter()
    try:
        played = scenario(row)
        result = simulate(played)
    except NotRun as why:
        return Answer(row, str(why))
    except KsimError as error:
        return Answer(row, _reason(error), took=time.perf_counter() - began)
    requests = result.history.requests
    if not requests.completed.all():
        return Answer(row, "the engine turned requests away, as their cache would not fit",
                      took=time.perf_counter() - began)
    weight = weights(row.concurrency, len(requests), recipes().source(row)[1].waves)
    tokens = float(np.sum(requests.output)) / result.history.duration / result.history.gpus
    ttft, tpot = (Latency(mean(values, weight), median(values, weight)) for values in (requests.ttft, requests.tpot))
    return Answer(row, "", ttft, tpot, tokens, time.perf_counter() - began)


def _reason(error: KsimError) -> str:
    """What a refused scenario has in common with others: the kind of the error, and its text without the figures."""
    text = str(error).split(":")[0] if type(error).__name__ == "DoesNotFit" else str(error)
    return f"{type(error).__name__}: {text}"


def answers(rows: Sequence[Row], jobs: int) -> Iterator[Answer]:
    """Play *rows* by *jobs* processes; the answers come as they are ready."""
    if jobs == 1 or len(rows) < 2:
        yield from map(answer, rows)
        return
    # The longest first, so that no process is left with one at the end.
    ordered = sorted(rows, key=lambda row: (-row.concurrency * row.output, row.id))
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(answer, ordered, chunksize=1)
