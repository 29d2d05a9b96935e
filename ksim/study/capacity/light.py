"""A set-up with one request at a time: no number of replicas is faster."""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import comb

import numpy as np
from attrs import frozen

from ksim.report.insights import step_bounds
from ksim.report.result import Result
from ksim.results.arrays import Floats
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import play
from ksim.study.capacity.targets import Target

#: How many requests show it, one after the other.
_REQUESTS = 32
#: A target is out of reach where requests that may keep it would do so badly less often than this.
_CHANCE = 1e-3
#: The steps whose bound tells why a latency is as long as it is.
_STEPS = {"ttft": "prefill", "tpot": "decode", "itl": "decode", "e2el": "decode"}


@frozen
class Light:
    """The statistics of latencies that have `targets`, in seconds, where requests never wait for each other.

    `missed` are the targets that are surely out of reach.  `bounds` say what holds the steps up that decide a metric.
    `seconds` is the mean time that a request takes.
    """

    values: Mapping[Target, float]
    missed: tuple[Target, ...]
    bounds: Mapping[str, str]
    seconds: float

    @property
    def worst(self) -> Target:
        """The target that is furthest from being kept, or closest to being missed."""
        return max(self.missed or self.values, key=self.strain)

    def strain(self, target: Target) -> float:
        """The value of *target* over its limit."""
        return self.values[target] / target.limit


def at_light_load(targets: Sequence[Target], scenario: Scenario) -> Light:
    """Serve the first requests of *scenario*'s workload one by one; raises KsimError where it cannot run."""
    alone = scenario.with_values({"workload.max_concurrency": 1})
    result = play(Fleet.of(alone), islice(scenario.workload.requests(scenario.seed), _REQUESTS))
    latencies = {target: _latencies(result, target.metric) for target in targets}
    bounds = {kind: insight.text for kind, insight in step_bounds(result.history, result.usage).items()}
    times = _latencies(result, "e2el")
    return Light({target: _statistic(target, latencies[target]) for target in targets},
                 tuple(target for target in targets if _surely_missed(target, latencies[target])),
                 {metric: bounds[steps] for metric, steps in _STEPS.items() if steps in bounds},
                 float(times.mean()) if len(times) else 0.0)


def _latencies(result: Result, metric: str) -> Floats:
    """The latencies of completed requests, in seconds."""
    requests = result.history.requests
    done = requests.completed
    if metric == "itl":
        return requests.gaps_of(done)
    several = done & (requests.output > 1) if metric == "tpot" else done
    values: Floats = getattr(requests, "e2e" if metric == "e2el" else metric)
    return values[several]


def _statistic(target: Target, seconds: Floats) -> float:
    if not len(seconds):
        return 0.0
    return float(seconds.mean() if target.share is None else np.quantile(seconds, target.share))


def _surely_missed(target: Target, seconds: Floats) -> bool:
    """Whether *seconds* are more than chance lets a sample be that keeps *target*."""
    if target.share is None:
        return len(seconds) > 1 and bool(seconds.mean() - 3 * seconds.std(ddof=1) / len(seconds)**0.5 > target.limit)
    misses, count, allowed = int((seconds > target.limit).sum()), len(seconds), 1 - target.share
    tail = sum(comb(count, k) * allowed**k * (1 - allowed)**(count - k) for k in range(misses, count + 1))
    return misses > 0 and tail < _CHANCE
