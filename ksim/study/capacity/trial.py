"""One run of a set-up at one rate: the observation that it makes of each target, and the rule that stops it early.

A run counts in its steady state alone: without its beginning, when queues fill (`mser`), and without its end, when they
drain (`before_drain`).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from attrs import evolve, field, frozen

from ksim.flow.events import Admitted, Arrived, Rejected
from ksim.flow.log import Log
from ksim.foundation.errors import KsimError
from ksim.results.history import History
from ksim.results.series import DRIFT, drifted, saturation
from ksim.results.steps import Bools, Floats
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import Running
from ksim.study.capacity.targets import Target
from ksim.study.capacity.traffic import Traffic, numbers
from ksim.study.experiment import Stopped, play
from ksim.study.plan import replication_seed

#: How often a run is looked at, as a share of its requests; the first time after two.
_EVERY = 1 / 16
#: How much longer than for a verdict at the end of a run a backlog has to be.  It is looked at many times, and may not
#: be called growing by chance in one of them.
SURE = 2 * DRIFT


#: Requests, and their rate, that show what a set-up can do at most.
_MANY, _AT_ONCE = 300, 1e6


@frozen
class Criteria:
    """By what a question of capacity is judged, and how much may be tried.

    Each replication has so many `requests`, by default as many as the targets need, and a rate gets at most so many
    `replications`.  With `model_errors`, the answer's interval tells what the latency model's own errors may change.
    `confidence` is that of all intervals.  The search ends when the interval that traffic leaves reaches no further
    than `precision`, as a share of the rate, to either side.  `seed` is that of the traffic: replication 0 has it, as
    in any other study.
    """

    targets: tuple[Target, ...]
    requests: int | None = None
    replications: int = 8
    model_errors: bool = True
    seed: int = 0
    confidence: float = 0.95
    precision: float = 0.05

    @property
    def count(self) -> int:
        """The requests of a replication."""
        return self.requests or max(target.requests for target in self.targets)

    @property
    def least(self) -> int:
        """The fewest requests that a replication may have."""
        return max(target.least_requests for target in self.targets)


@frozen
class RateRun:
    """A run of `scenario` at `rate` with the traffic of a `replication`; with the model errors of a `draw`, if any."""

    scenario: Scenario
    rate: float
    replication: int
    draw: int | None = None


@frozen(eq=False)
class TargetSample:
    """A target's latencies in one run, request by request in order of arrival.

    `amount` is what counts against the target: misses of a percentile's limit, or seconds of a mean, and `counted` how
    many of them there could be.  `value` is the request's latency, nan where it has none.  Requests from `end` on saw
    the load drain.
    """

    amount: Floats
    counted: Floats
    value: Floats
    end: int


@frozen(eq=False)
class Observation:
    """The result of a run: a sample for each target, which requests kept all limits (`good`), and numbers to show.

    `hopeless` says why it was stopped early, "" where it was not; then there are no samples.  `saturated` tells that
    the backlog kept growing.
    """

    rate: float
    replication: int
    draw: int | None = None
    samples: Sequence[TargetSample] = ()
    good: Bools = field(factory=lambda: np.zeros(0, bool))
    numbers: Mapping[str, float] = field(factory=dict)
    saturated: bool = False
    hopeless: str = ""


def observe(criteria: Criteria, run: RateRun) -> Observation:
    """Carry *run* out; the same answer in any process."""
    seed = replication_seed(criteria.seed, run.replication)
    traffic = Traffic.of(run.scenario.workload, criteria.count, criteria.least)
    scenario = evolve(run.scenario, kernel_errors=errors_of(criteria, run))
    try:
        result = play(scenario, traffic.requests(run.rate, seed), BacklogGrows(traffic.count))
    except Stopped as reason:
        return Observation(run.rate, run.replication, run.draw, saturated=True, hopeless=str(reason))
    history = result.history
    good = np.ones(len(history.requests), bool)
    samples = [sample(history, target, good) for target in criteria.targets]
    return Observation(run.rate, run.replication, run.draw, samples, good, numbers(history, Fleet.of(scenario), good),
                       bool(saturation(history)["saturated"]))


def errors_of(criteria: Criteria, run: RateRun) -> int | None:
    """The seed of the kernel errors of *run*'s draw, if it has one."""
    return None if run.draw is None else replication_seed(criteria.seed, run.draw)


def throughput(criteria: Criteria, scenario: Scenario) -> float:
    """Requests/s that *scenario* completes when many wait: roughly what it can do at most."""
    traffic = Traffic.of(scenario.workload, min(criteria.count, _MANY))
    requests = play(scenario, traffic.requests(_AT_ONCE, replication_seed(criteria.seed, 0))).history.requests
    ends = np.sort(requests.finished[requests.completed])
    if not len(ends):
        raise KsimError("no request can be served: " + next(iter(requests.reasons.values()), "none completed"))
    most = ends[int(0.95 * (len(ends) - 1))]
    return float(0.95 * len(ends) / most)


def runnable(criteria: Criteria, run: RateRun) -> Scenario:
    """The scenario that ``ksim run`` plays just like *run*; of a trace that is resampled, with the trace as it is."""
    workload = Traffic.of(run.scenario.workload, criteria.count).at(run.rate)
    return evolve(run.scenario, workload=workload, seed=replication_seed(criteria.seed, run.replication),
                  kernel_errors=errors_of(criteria, run))


def sample(history: History, target: Target, good: Bools) -> TargetSample:
    """The sample of *target* in *history*; requests that missed its limit are no longer *good*.

    Requests that were turned away, or failed, missed any limit: their latency is infinite.
    """
    requests = history.requests
    value = np.where(requests.completed, requests.latency(target.metric), np.inf)
    counted = np.where(np.isnan(value), 0.0, 1.0)
    finite = np.isfinite(value)
    if target.metric == "itl" and target.share is not None:
        amount, counted = _gaps(history, target.limit)
    elif target.share is not None:
        amount = np.where(counted > 0, value > target.limit, False).astype(np.float64)
    else:
        counted = finite.astype(np.float64)
        amount = np.where(finite, value, 0.0)
    if target.share is not None:
        good &= amount <= counted * (1 - target.share if target.metric == "itl" else 0.0)
    ends = requests.first_token if target.metric in ("ttft", "queue") else requests.last_token
    return TargetSample(amount, counted, np.where(finite, value, np.nan), before_drain(requests.arrival, ends))


def _gaps(history: History, limit: float) -> tuple[Floats, Floats]:
    """For each request, its gaps between tokens that are longer than *limit*, and all its gaps: two counts."""
    requests = history.requests
    counts = np.where(requests.completed, requests.gap_counts, 0)
    owner = np.repeat(np.arange(len(requests)), counts)
    late = np.bincount(owner, requests.gaps_of(requests.completed) > limit, minlength=len(requests))
    unserved = ~requests.completed
    return np.where(unserved, 1.0, late), np.where(unserved, 1.0, counts)


@frozen
class BacklogGrows:
    """The rule that stops a run of about `count` requests as soon as its backlog is sure to grow.

    It goes by the rule of growth of `ksim.results.metrics`: requests keep coming faster than they are served.
    """

    of_ends: ClassVar[bool] = False
    count: int

    def looks(self, scenario: Scenario) -> Iterator[int]:
        every = max(50, int(_EVERY * self.count))
        return itertools.count(2 * every, every)

    def reason(self, running: Running, requests: int) -> str:
        if grows(backlog(running.log), _burstiness(running.log)):
            return f"the backlog kept growing over the first {requests:,} requests"
        return ""


def grows(queue: Floats, burstiness: float = 1.0) -> bool:
    """Whether a *queue*, as it was at each arrival, surely grows; one of bursty arrivals has to be longer for that."""
    return len(queue) >= 50 and drifted(queue, SURE * max(1.0, burstiness))


def backlog(log: Log) -> Floats:
    """The number of requests that waited at each arrival, up to the latest admission in *log*.

    An engine may write down admissions some steps later than the cluster writes down arrivals.
    """
    arrived, admitted = log.columns(Arrived)["time"], log.columns(Admitted)
    left = np.sort(np.concatenate([admitted["time"][~admitted["again"]], log.columns(Rejected)["time"]]))
    known = arrived[arrived <= left[-1]] if len(left) else arrived[:0]
    return (np.arange(1, len(known) + 1) - np.searchsorted(left, known, side="right")).astype(np.float64)


def _burstiness(log: Log) -> float:
    """The standard deviation of the gaps between arrivals over their mean: 1 for Poisson."""
    gaps = np.diff(log.columns(Arrived)["time"])
    return float(gaps.std() / gaps.mean()) if gaps.sum() > 0 else 1.0


#: Observations of a batch, and the share of a series that may be cut off at most.
_BATCH, _MOST = 5, 0.5


def mser(series: Floats, batch: int = _BATCH) -> int:
    """The number of observations to leave out at the beginning of *series*.

    MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997):
    of the means of batches of five, those are kept whose mean has the least standard error.  A minimum in the second
    half says that the series is too short; no more than half is cut off.
    """
    count = len(series) // batch
    if count < 2:
        return 0
    means = series[:count * batch].reshape(count, batch).mean(axis=1)
    left = np.arange(count, 0, -1)
    # Sums over all batches from each one to the last.
    total, squares = (np.cumsum(column[::-1])[::-1] for column in (means, means * means))
    errors = np.maximum(squares - total * total / left, 0.0) / left**2
    return int(np.argmin(errors[:max(1, int(_MOST * count))])) * batch


def before_drain(arrival: Floats, known: Floats) -> int:
    """The number of requests to keep, in order of *arrival*; the later ones see the load drain, as no more follow.

    *known* is when the latency of each request was known.  Requests are cut off that arrive less than the median of
    `known - arrival` before the last one, but no more than half of all.  Long and short ones are cut off alike, so that
    neither is preferred.
    """
    if not len(arrival):
        return 0
    took = known - arrival
    took = took[np.isfinite(took)]
    end = arrival[-1] - (float(np.median(took)) if len(took) else 0.0)
    return max(int(np.searchsorted(arrival, end, side="right")), len(arrival) - int(_MOST * len(arrival)))
