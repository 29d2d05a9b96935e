"""Simulate measured runs, several at a time."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from ksim.calibration.regression import weighted_median
from ksim.foundation.errors import KsimError
from ksim.oracles.efficiency.physics import Array
from ksim.simulation.processes import run_in_processes
from ksim.simulation.simulate import simulate
from ksim.validation.silicon.assumptions import NotRun, recipes
from ksim.validation.silicon.rounding import rounded
from ksim.validation.silicon.rows import Row
from ksim.validation.silicon.scenarios import scenario


@frozen
class Latency:
    """The mean and the median of a latency over the requests of a run, in seconds."""

    mean: float
    median: float


@frozen
class Answer:
    """The prediction for a row: latencies in seconds, and tokens per second and GPU; or the `reason` why there is none.

    `took` is how long the simulation took, in seconds.
    """

    row: Row
    reason: str = ""
    ttft: Latency | None = None
    tpot: Latency | None = None
    throughput: float | None = None
    took: float = 0.0

    def predicted(self, what: str, statistic: str = "") -> float:
        """TTFT or TPOT in seconds, by *statistic* or by default the one that the row's source states."""
        latency: Latency = getattr(self, what)
        value: float = getattr(latency, statistic or recipes().source(self.row)[1].statistic)
        return value

    @property
    def rates(self) -> tuple[float, float] | None:
        """Output tokens per second and GPU, predicted and measured; None where the row's GPUs are not known.

        The table has no rates.  In a closed loop they follow from the mean latencies (Little's law): as many requests
        are in flight as the concurrency allows, each for its TTFT and the time of its further tokens.  Both sides are
        worked out alike, so what the law leaves out, the end of the run, does not tell between them.
        """
        if not self.row.gpus or not self.ttft or not self.tpot:
            return None
        low, high = recipes().source(self.row)[1].output
        output = self.row.output * (low + high) / 2
        predicted, measured = (self.row.concurrency * output / (ttft + (output - 1) * tpot) / self.row.gpus
                               for ttft, tpot in ((self.ttft.mean, self.tpot.mean), (self.row.ttft, self.row.tpot)))
        return predicted, measured


def answer(row: Row) -> Answer:
    """Simulate *row*."""
    began = time.perf_counter()
    try:
        played = scenario(row)
        result = simulate(rounded(played) if played.pools else played)
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
    """The kind of *error* and its text without figures, so that similar errors read the same."""
    text = str(error).split(":")[0] if type(error).__name__ == "DoesNotFit" else str(error)
    return f"{type(error).__name__}: {text}"


def answers(rows: Sequence[Row], jobs: int) -> Iterator[Answer]:
    """Simulate *rows* in *jobs* processes, the longest first."""
    # With the longest first, no process is left with a long one at the end.
    return run_in_processes(answer, sorted(rows, key=lambda row: (-row.concurrency * row.output, row.id)), jobs)


def weights(concurrency: int, played: int, full: int) -> Array:
    """How many prompts of the *full* waves each of the *played* prompts stands for, in their order.

    The first wave, which arrives all at once, and the last, in which concurrency falls, stand for themselves.  The
    waves in between stand for all waves in between.
    """
    count = played // concurrency
    stands_for = np.ones(played)
    if count < full:
        stands_for[concurrency: played - concurrency] = (full - 2) / (count - 2)
    return stands_for


def mean(values: Array, weight: Array) -> float:
    """The weighted mean of the *values* that are not nan; nan where all are."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weight[known])) if known.any() else float("nan")


def median(values: Array, weight: Array) -> float:
    """The weighted median of the *values* that are not nan; nan where all are."""
    known = ~np.isnan(values)
    if not known.any():
        return float("nan")
    return weighted_median(values[known], weight[known])
