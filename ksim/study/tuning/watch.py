"""Stop a trial early that is certain to miss a requirement, whatever its other requests will see.

A run is looked at now and then while it goes on.  Latencies of requests that have completed are final, and the number
of requests is known: once more than 1 % of them all took too long, no later request can bring the p99 back.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from math import floor, inf
from typing import Any

from attrs import define, field, frozen

from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.foundation import process
from ksim.foundation.errors import KsimError
from ksim.results.steps import Floats
from ksim.scenario.model_card import WorkloadSize
from ksim.scenario.scenario import Scenario
from ksim.simulation.assembly import build
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import labels_of, targets_of
from ksim.study.pareto import Requirement, value_of
from ksim.views.result import Result
from ksim.views.wording import number

#: After which shares of its requests a run is looked at.  Each look takes about as long as a hundred steps.
LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
_KEY = re.compile(r"(mean|median|p\d+)_(ttft|tpot|e2el|queue)_ms")


class Missed(KsimError):
    """A run was stopped, since it was certain to miss a requirement."""


@frozen
class Limit:
    """A requirement on a latency: the `statistic` of a `metric` must not exceed `bound`, in milliseconds.

    With several replications, whose mean counts, it may be exceeded as many times in one of them.
    """

    requirement: Requirement
    metric: str
    statistic: str
    bound: float

    @classmethod
    def of(cls, requirement: Requirement, repeat: int = 1) -> "Limit | None":
        """The limit that *requirement* sets to each of *repeat* replications; None where it sets none."""
        match = _KEY.fullmatch(requirement.key)
        if match is None or requirement.sign not in ("<", "<="):
            return None
        return cls(requirement, match[2], match[1], repeat * requirement.bound)

    def missed(self, values: Floats, requests: int) -> bool:
        """Whether it is missed for sure, if *values* are those of some of at most so many *requests*."""
        if self.statistic == "mean":
            return bool(values.sum() > self.bound * requests)
        share = 0.5 if self.statistic == "median" else int(self.statistic[1:]) / 100
        return bool((values > self.bound).sum() >= requests - floor(share * (requests - 1)))


@define
class Watch:
    """Plays one scenario and looks at it; stops it as soon as one of the *limits* is missed for sure.

    With `stop` false, it notes when it would have stopped, and plays on.  `at_stop` are some *keys* of the summary of
    what had happened by that moment, and how many `requests` had ended; None where that moment did not come.
    """

    limits: Sequence[Limit]
    keys: Sequence[str]
    stop: bool = True
    at_stop: Mapping[str, float | None] | None = field(default=None, init=False)
    _ended: int = field(default=0, init=False)
    _due: float = field(default=inf, init=False)
    _wake: Any = field(default=None, init=False)

    def play(self, scenario: Scenario, on_end: Callable[[], None] = lambda: None) -> Result:
        """Run *scenario* as `simulate` does; raises Missed where that is of no use."""
        fleet, env, log = Fleet.of(scenario), Horizon(), Log()
        fleet.check_run()

        def so_far() -> Result:
            cluster.close()
            return Result(log, labels_of(fleet), targets_of(fleet.scenario), fleet.scenario.to_toml(), (), fleet.rates,
                          fleet.pool_rates)

        cluster = build(fleet, env, log, partial(self._count, on_end))
        env.process(cluster.serve(scenario.workload.requests(scenario.seed)))
        if self.limits:
            env.process(self._looks(env, _size(scenario), so_far))
        with process.paused():
            env.run()
            return so_far()

    def _count(self, on_end: Callable[[], None]) -> None:
        """Count a request that has ended, and wake who looks at the run if it is time."""
        self._ended += 1
        if self._ended >= self._due and not self._wake.triggered:
            self._wake.succeed()
        on_end()

    def _looks(self, env: Horizon, size: int, so_far: Callable[[], Result]) -> Generator[Any, Any, None]:
        """Look at the run now and then, as an event of its own: engines are between two steps then."""
        for share in LOOKS:
            self._due, self._wake = share * size, env.event()
            if self._ended < self._due:
                yield self._wake
            result = so_far()
            requests = result.history.requests
            missed = next((limit for limit in self.limits
                           if limit.missed(1e3 * requests.latencies(limit.metric, requests.completed), size)), None)
            if missed is not None:
                self._stop(missed, result.summary, size)
                return
        self._due = inf

    def _stop(self, missed: Limit, summary: Mapping[str, Any], size: int) -> None:
        """Note what is known by now; raises Missed if the run is to be stopped."""
        self.at_stop = {"requests": self._ended, **{key: value_of(summary, key) for key in self.keys}}
        self._due = inf
        if self.stop:
            raise Missed(f"stopped after {self._ended:,} of {size:,} requests: {missed.requirement.key} is certain to"
                           f" miss {missed.requirement.sign} {number(missed.requirement.bound)}")


def _size(scenario: Scenario) -> int:
    """How many requests the workload of *scenario* has."""
    synthetic = scenario.workload.synthetic
    count = synthetic.count if synthetic is not None else None
    return count or WorkloadSize.of(scenario).requests
