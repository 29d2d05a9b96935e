"""What planning asks of the statistics: whether a set-up carries a rate, its highest rate, and how it is unloaded."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any, Protocol

from attrs import evolve, field, frozen

from ksim.foundation.errors import KsimError
from ksim.simulation.scenario import Scenario
from ksim.study.capacity.estimate import RatePoint
from ksim.study.capacity.highest_rate import RateAnswer, decide, highest_rate
from ksim.study.capacity.intervals import FEWEST
from ksim.study.capacity.light import Light, at_light_load
from ksim.study.capacity.search import Search
from ksim.study.capacity.setups import SetUp
from ksim.study.capacity.trial import Observation, Plan, Trial, throughput
from ksim.study.workers import Workers, in_order

#: How many times as long as a request takes alone arrivals last at least.  Under load, it takes several times as long.
#: With 10, the quickstart's three H100 seemed to carry 74 requests/s; with 20 and 40, it was 64 and 62.
LIVES = 40


class Judge(Protocol):
    """Judges set-ups by the targets of a question."""

    def begin(self, made: Sequence[SetUp]) -> list[tuple[Light, float] | str]:
        """One replica of each set-up with one request at a time, and the requests/s that it completes under a flood.

        For a set-up that cannot run, it is the reason.
        """
        ...

    def decide(self, setup: SetUp, replicas: int, rate: float) -> RatePoint:
        """So many *replicas* at *rate* requests/s, run as often as it takes to tell whether they keep the targets."""
        ...

    def points(self, setup: SetUp, replicas: int, rates: Sequence[float]) -> list[RatePoint]:
        """So many *replicas* at each of *rates*, run just as often as gives an interval."""
        ...

    def highest(self, setup: SetUp, replicas: int, near: float, errors: bool) -> RateAnswer:
        """The highest rate at which so many *replicas* keep the targets, *near* a guess.

        Its interval tells what the model's *errors* may change, too, if they are asked for.
        """
        ...


class Watcher(Protocol):
    """Sees what a judge does."""

    def stage(self, text: str) -> None:
        """Something else begins, which *text* names."""
        ...

    def begin(self, setup: SetUp, replicas: int, trials: Sequence[Trial]) -> None:
        """*trials* of a set-up with so many *replicas* begin."""
        ...

    def end(self, setup: SetUp, replicas: int, plan: Plan, trial: Trial, observation: Observation) -> None:
        """One of them has ended, of a *plan* with as many requests as it needed."""
        ...


@frozen
class ByRuns:
    """Judges by runs of a *plan* that *workers* compute, while a *watcher* sees them.

    A trial is run once, however often it is asked for: what shows how many replicas a rate needs is part of what shows
    the highest rate of so many.
    """

    plan: Plan
    workers: Workers
    watcher: Watcher
    _ended: dict[tuple[str, int, float, int, int | None], Observation] = field(factory=dict, init=False)
    _plans: dict[tuple[str, int], Plan] = field(factory=dict, init=False)
    _seconds: dict[str, float] = field(factory=dict, init=False)

    @property
    def requests(self) -> int:
        """The most requests that a replication had."""
        return max((plan.count for plan in self._plans.values()), default=self.plan.count)

    def begin(self, made: Sequence[SetUp]) -> list[tuple[Light, float] | str]:
        begun = in_order(self.workers.run(partial(_begin, self.plan), [setup.replicas(1) for setup in made]), len(made))
        self._seconds.update((setup.name, one[0].seconds) for setup, one in zip(made, begun, strict=True)
                             if not isinstance(one, str))
        return begun

    def decide(self, setup: SetUp, replicas: int, rate: float) -> RatePoint:
        plan = self._planned(setup, replicas, rate)
        return decide(setup.replicas(replicas), rate, plan, _Watched(self, setup, replicas, plan))

    def points(self, setup: SetUp, replicas: int, rates: Sequence[float]) -> list[RatePoint]:
        plan = self._planned(setup, replicas, rates[0]) if rates else self.plan
        search = Search.of(setup.replicas(replicas), plan, _Watched(self, setup, replicas, plan))
        search.observe([(rate, number, None) for rate in rates for number in range(FEWEST)])
        return [search.known(rate) for rate in rates]

    def highest(self, setup: SetUp, replicas: int, near: float, errors: bool) -> RateAnswer:
        plan = evolve(self._planned(setup, replicas, near), model_errors=self.plan.model_errors and errors)
        return highest_rate(setup.replicas(replicas), plan, _Watched(self, setup, replicas, plan), near)

    def _planned(self, setup: SetUp, replicas: int, rate: float) -> Plan:
        """The plan with as many requests as a set-up with so many *replicas* needs, when it is first asked for.

        Arrivals have to last several times as long as a request takes, or a large fleet is never busy as it would be.
        """
        least = ceil(LIVES * rate * max(self._seconds.values(), default=0.0))
        plan = self.plan if self.plan.requests else evolve(self.plan, requests=max(self.plan.count, least))
        return self._plans.setdefault((setup.name, replicas), plan)


@frozen
class _Watched:
    """The workers of a judge, for trials of one set-up with so many replicas."""

    judge: ByRuns
    setup: SetUp
    replicas: int
    plan: Plan

    @property
    def count(self) -> int:
        return self.judge.workers.count

    def run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if not all(isinstance(item, Trial) for item in items):
            yield from self.judge.workers.run(work, items)
            return
        ended, watcher = self.judge._ended, self.judge.watcher
        keys = [(self.setup.name, self.replicas, trial.rate, trial.replication, trial.draw) for trial in items]
        new = [place for place, key in enumerate(keys) if key not in ended]
        yield from ((place, ended[key]) for place, key in enumerate(keys) if key in ended)
        watcher.begin(self.setup, self.replicas, [items[place] for place in new])
        for at, seen in self.judge.workers.run(work, [items[place] for place in new]):
            ended[keys[new[at]]] = seen
            watcher.end(self.setup, self.replicas, self.plan, items[new[at]], seen)
            yield new[at], seen


def _begin(plan: Plan, scenario: Scenario) -> tuple[Light, float] | str:
    try:
        light = at_light_load(plan.targets, scenario)
        return light, 0.0 if light.missed else throughput(plan, scenario)
    except KsimError as error:
        return str(error)


def keeps(point: RatePoint) -> bool:
    """Whether *point* keeps all targets, by its estimate where the runs cannot tell surely."""
    if point.meets is not None:
        return point.meets
    return all(ratio <= 1 for ratio, _ in point.excess.values())
