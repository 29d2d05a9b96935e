"""A trial: one run of one set-up at one rate, with the traffic of one replication."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen

from ksim.flow.log import Log
from ksim.foundation.errors import KsimError
from ksim.results.history import History
from ksim.results.series import saturation
from ksim.results.steps import Bools, Floats
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import serve
from ksim.study.capacity.early_stop import Hopeless, before_drain, setup, watched
from ksim.study.capacity.targets import Target
from ksim.study.capacity.traffic import Traffic, numbers, replication_seed

#: Requests, and their rate, that show what a set-up can do at most.
_MANY, _AT_ONCE = 300, 1e6


@frozen
class Plan:
    """What a study of capacity asks, and how much it may try.

    Each replication has so many `requests`, by default as many as the targets need, and a rate gets at most so many
    `replications`.  With `model_errors`, the answer's interval tells what the latency model's own errors may change.
    `confidence` is that of all intervals.  The search ends when the interval that traffic leaves reaches no further
    than `precision`, as a share of the rate, to either side.
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
        """How many requests a replication has."""
        return self.requests or max(target.requests for target in self.targets)

    @property
    def least(self) -> int:
        """How many it has to have at least."""
        return max(target.least_requests for target in self.targets)


@frozen
class Trial:
    """A run of `scenario` at `rate` with the traffic of a `replication`; with the model errors of a `draw`, if any."""

    scenario: Scenario
    rate: float
    replication: int
    draw: int | None = None


@frozen(eq=False)
class Sample:
    """What a trial says of a target, request by request in order of arrival.

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
    """What a trial says: a sample for each target of the plan, which requests kept all limits, and numbers to show.

    `hopeless` says why it was stopped early, "" where it was not; then there are no samples.  `saturated` tells that
    the backlog kept growing.
    """

    rate: float
    replication: int
    draw: int | None = None
    samples: Sequence[Sample] = ()
    good: Bools = field(factory=lambda: np.zeros(0, bool))
    numbers: Mapping[str, float] = field(factory=dict)
    saturated: bool = False
    hopeless: str = ""


def observe(plan: Plan, trial: Trial) -> Observation:
    """Run *trial*; the same answer in any process."""
    seed = replication_seed(plan.seed, trial.replication)
    traffic = Traffic.of(trial.scenario.workload, plan.count, plan.least)
    log, fleet = Log(), setup(trial.scenario, None if trial.draw is None else replication_seed(plan.seed, trial.draw))
    try:
        serve(fleet, watched(traffic.requests(trial.rate, seed), log, traffic.count), log, lambda: None)
    except Hopeless as reason:
        return Observation(trial.rate, trial.replication, trial.draw, saturated=True, hopeless=str(reason))
    history = History(log)
    good = np.ones(len(history.requests), bool)
    samples = [sample(history, target, good) for target in plan.targets]
    return Observation(trial.rate, trial.replication, trial.draw, samples, good, numbers(history, fleet, good),
                       bool(saturation(history)["saturated"]))


def throughput(plan: Plan, scenario: Scenario) -> float:
    """Requests/s that *scenario* completes when many wait: roughly what it can do at most."""
    traffic = Traffic.of(scenario.workload, min(plan.count, _MANY))
    log, fleet = Log(), setup(scenario)
    serve(fleet, traffic.requests(_AT_ONCE, replication_seed(plan.seed, 0)), log, lambda: None)
    requests = History(log).requests
    ends = np.sort(requests.finished[requests.completed])
    if not len(ends):
        raise KsimError("no request can be served: " + next(iter(requests.reasons.values()), "none completed"))
    most = ends[int(0.95 * (len(ends) - 1))]
    return float(0.95 * len(ends) / most)


def runnable(plan: Plan, trial: Trial) -> Scenario:
    """The scenario that ``ksim run`` plays just like *trial*; of a trace that is resampled, with the trace as it is."""
    scenario, seed = trial.scenario, replication_seed(plan.seed, trial.replication)
    errors = None if trial.draw is None else replication_seed(plan.seed, trial.draw)
    workload = Traffic.of(scenario.workload, plan.count).at(trial.rate)
    return evolve(scenario, workload=workload, seed=seed, kernel_errors=errors)


def sample(history: History, target: Target, good: Bools) -> Sample:
    """What *history* says of *target*; requests that missed its limit are no longer *good*.

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
    return Sample(amount, counted, np.where(finite, value, np.nan), before_drain(requests.arrival, ends))


def _gaps(history: History, limit: float) -> tuple[Floats, Floats]:
    """How many of each request's gaps between tokens are longer than *limit*, and how many it has."""
    requests = history.requests
    counts = np.where(requests.completed, requests.gap_counts, 0)
    owner = np.repeat(np.arange(len(requests)), counts)
    late = np.bincount(owner, requests.gaps_of(requests.completed) > limit, minlength=len(requests))
    unserved = ~requests.completed
    return np.where(unserved, 1.0, late), np.where(unserved, 1.0, counts)
