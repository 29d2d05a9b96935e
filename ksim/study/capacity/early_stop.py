"""Stop a run that is hopeless: as soon as it is sure that its backlog grows.

Where a run is in its steady state: without its beginning, when queues fill, and its end, when they drain.

Set-ups that stay ready between runs: looked up once in a process, with tables of prices that stay warm.

Most of a short run is spent on pricing steps of new sizes, and runs at other rates have the same sizes again.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import evolve, field, fields, frozen

from ksim.cost.step import Timer
from ksim.flow.events import Admitted, Arrived, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.config import structure
from ksim.foundation.errors import KsimError
from ksim.results.series import DRIFT, drifted
from ksim.results.steps import Floats
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.fleet import Fleet
from ksim.workload.replay import Workload

#: How often a run is looked at, as a share of its requests; the first time after two.
_EVERY = 1 / 16
#: How much longer than for a verdict at the end of a run a backlog has to be.  It is looked at many times, and may not
#: be called growing by chance in one of them.
SURE = 2 * DRIFT


class Hopeless(KsimError):
    """A run was stopped: requests kept coming faster than they were served."""


def watched(requests: Iterable[Request], log: Log, count: int) -> Iterator[Request]:
    """*requests*, about *count* of them, as a cluster pulls them while it writes *log*.

    Raises Hopeless instead of the next one as soon as the backlog is sure to grow, by the rule of growth of
    `ksim.results.series`.  It reads the log and changes nothing.
    """
    every = max(50, int(_EVERY * count))
    for number, request in enumerate(requests):
        if number >= 2 * every and number % every == 0 and grows(backlog(log), _burstiness(log)):
            raise Hopeless(f"the backlog kept growing over the first {number:,} requests")
        yield request


def grows(queue: Floats, burstiness: float = 1.0) -> bool:
    """Whether a *queue*, as it was at each arrival, surely grows; one of bursty arrivals has to be longer for that."""
    return len(queue) >= 50 and drifted(queue, SURE * max(1.0, burstiness))


def backlog(log: Log) -> Floats:
    """How many requests waited at each arrival, up to the latest admission that is in *log*.

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
    """How many observations at the beginning of *series* to leave out.

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
    """How many of the requests that arrived then come early enough: those after them see load fall, as none follows.

    What counts of a request is *known* some time after its arrival.  Requests that arrive within the median of that
    time before the last one are cut off, but no more than half of all; long ones and short ones alike, so that neither
    is preferred.
    """
    if not len(arrival):
        return 0
    took = known - arrival
    took = took[np.isfinite(took)]
    end = arrival[-1] - (float(np.median(took)) if len(took) else 0.0)
    return max(int(np.searchsorted(arrival, end, side="right")), len(arrival) - int(_MOST * len(arrival)))


#: The set-ups that a process keeps ready.
_SETUPS = 8


def setup(scenario: Scenario, errors: int | None = None) -> Fleet:
    """The fleet of *scenario* with those kernel *errors*, which a process looks up once, whatever the workload."""
    bare = evolve(scenario, workload=structure(Workload, ANY_WORKLOAD, "workload"), seed=0, kernel_errors=errors)
    return _fleet(_Text(bare))


@frozen
class WarmDeployment(Deployment):
    """A deployment whose timers are made once; engines of one GPU each, whose places do not matter, share theirs."""

    _timers: dict[tuple[Any, ...], list[Timer]] = field(factory=dict, eq=False, repr=False)

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        alone = self.serve.gpus == 1 and self.shards[0].data == 1
        key = () if alone else (first, tuple(firsts))
        if key not in self._timers:
            self._timers[key] = super().timers(first, firsts)
        return self._timers[key]

    @classmethod
    def like(cls, deployment: Deployment) -> "WarmDeployment":
        """*deployment*, with timers that stay."""
        return cls(**{one.name: getattr(deployment, one.name) for one in fields(Deployment)})


class _Text:
    """A scenario as the key of a cache: by all that it says."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self._text = scenario, repr(scenario)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self._text == other._text


@lru_cache(maxsize=_SETUPS)
def _fleet(key: _Text) -> Fleet:
    fleet = Fleet.of(key.scenario)
    pools = (evolve(pool, deployment=WarmDeployment.like(pool.deployment)) for pool in fleet.pools)
    return evolve(fleet, pools=tuple(pools))
