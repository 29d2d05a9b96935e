"""The judgement of one set-up: its latencies without load, its highest rate, and the fewest replicas for a rate.

A `SetUp` is a scenario with some settings changed.  A `Judge` answers questions about it, by runs (`ByRuns`); `fewest`
and `highest_rate` are the two searches.  `at_light_load` serves one request at a time: no number of replicas is faster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import ceil, comb, exp, hypot, inf, log
from typing import Any, Protocol

import numpy as np
from attrs import evolve, field, frozen

from ksim.foundation.errors import DoesNotFit, KsimError
from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.specs.hardware import MOST
from ksim.study.capacity.journal import Journal
from ksim.study.capacity.search import RatePoint, RateSearch
from ksim.study.capacity.targets import FEWEST, Interval, Target
from ksim.study.capacity.traffic import gpus_of, replicated
from ksim.study.capacity.trial import Criteria, Observation, RateRun, throughput
from ksim.study.experiment import play, problem_of, scenario_at
from ksim.study.grid import Settings, SettingValues, combinations, short_names, value_text
from ksim.study.pareto import first_of
from ksim.study.workers import RunWorkers, in_order
from ksim.views.insights import step_bounds

#: Settings whose names people say in short.
_SHORT = {"tensor_parallel_size": "TP", "pipeline_parallel_size": "PP", "data_parallel_size": "DP"}
#: Settings that say where a set-up runs.
_PLACES = ("gpu", "system")


@frozen
class SetUp:
    """A scenario with the `settings` that tell it from the other set-ups, and why it cannot run, if it cannot.

    `gpus` are those of one replica: of the scenario as it is.  There can be so many replicas at `most`.
    """

    name: str
    settings: Settings
    scenario: Scenario | None = field(repr=False)
    gpus: int = 0
    problem: str = ""
    most: int = MOST

    def replicas(self, count: int) -> Scenario:
        """Its scenario with *count* replicas."""
        assert self.scenario is not None, "a set-up that cannot run has no replicas"
        return replicated(self.scenario, count)


def set_ups(scenario: Scenario, over: Sequence[SettingValues]) -> list[SetUp]:
    """A set-up for each combination of the values of *over*; raises KsimError where none can run.

    Raises UnknownName for an unknown name, which is a mistake whatever the other settings are.
    """
    chosen = combinations(over)
    made = [_set_up(scenario, settings, problem_of(scenario, settings)) for settings in chosen]
    if all(setup.problem for setup in made):
        reasons = first_of([setup.problem for setup in made])
        raise KsimError(f"none of {len(made)} set-ups can run: {reasons}" if len(made) > 1 else reasons)
    return made


def _set_up(scenario: Scenario, settings: Settings, problem: str) -> SetUp:
    if problem:
        return SetUp(_name(scenario, settings), settings, None, problem=problem)
    changed = scenario_at(scenario, settings)
    fleet = Fleet.of(changed)
    try:
        fleet.check_memory()
    except DoesNotFit as error:
        return SetUp(_name(changed, settings), settings, None, problem=str(error))
    size = max(*(pool.replicas for pool in fleet.pools), *(part.system.nodes for part in fleet.machines))
    return SetUp(_name(changed, settings), settings, changed, gpus_of(fleet), most=MOST // size)


def _name(scenario: Scenario, settings: Settings) -> str:
    """A name by the settings that differ, such as "TP4 on h200"; of a single set-up, by parallelism and GPU."""
    chosen = settings or ({} if scenario.pools else {
        "serve.tensor_parallel_size": scenario.serve.tensor_parallel_size, "gpu": scenario.gpu or scenario.system})
    names = short_names(list(chosen))
    settings_text = ", ".join(_setting_text(key, names[key], value) for key, value in chosen.items()
                              if key not in _PLACES)
    hardware = ", ".join(str(chosen[key]) for key in _PLACES if key in chosen)
    return " on ".join(filter(None, (settings_text, hardware))) or "the fleet"


def _setting_text(key: str, name: str, value: Any) -> str:
    if key.startswith("pools."):
        return f"{key.removeprefix('pools.')}={value_text(value)}"
    return f"{_SHORT[name]}{value}" if name in _SHORT else f"{name} {value_text(value)}"


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
    result = play(alone, islice(scenario.workload.requests(scenario.seed), _REQUESTS))
    requests = result.history.requests
    latencies = {target: requests.latencies(target.metric, requests.completed) for target in targets}
    bounds = {kind: insight.text for kind, insight in step_bounds(result.history, result.usage).items()}
    times = requests.latencies("e2el", requests.completed)
    return Light({target: _statistic(target, latencies[target]) for target in targets},
                 tuple(target for target in targets if _surely_missed(target, latencies[target])),
                 {metric: bounds[steps] for metric, steps in _STEPS.items() if steps in bounds},
                 float(times.mean()) if len(times) else 0.0)


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


@frozen
class RateAnswer:
    """The highest `rate`, in requests/s, that keeps the targets, and the `interval` that holds it with the criteria's
    confidence.

    `traffic` is what chance in the traffic leaves open, `model` what the errors of the latency model do; `model_share`
    is the model's part of the variance of both.  `binds` is the target that is missed first, None where it is that the
    backlog grows.  `points` are all rates that were tried, in ascending order.
    """

    rate: float
    interval: Interval
    traffic: Interval
    model: Interval | None
    model_share: float
    binds: Target | None
    points: tuple[RatePoint, ...]
    notes: tuple[str, ...] = ()


def highest_rate(scenario: Scenario, criteria: Criteria, workers: RunWorkers, near: float | None = None) -> RateAnswer:
    """The highest rate at which *scenario*, as it is, keeps the targets of *criteria*; *near* says where to begin.

    Raises ConfigError where it keeps them at no rate, however low.
    """
    search = RateSearch.of(scenario, criteria, workers)
    curves = search.refine(*search.bracket(near))
    rate = curves.crossing() or curves.rates[0]
    traffic = curves.interval(criteria.confidence, search.traffic.own_spread)
    model = search.model(rate) if criteria.model_errors else None
    interval, share = together(rate, traffic, model)
    return RateAnswer(rate=rate, interval=interval, traffic=traffic, model=model, model_share=share,
                      binds=search.binding(rate), points=search.points(), notes=search.notes())


def decide(scenario: Scenario, rate: float, criteria: Criteria, workers: RunWorkers, least: int = 2) -> RatePoint:
    """Whether *scenario* keeps the targets of *criteria* at *rate*: as long as that is open, more replications run
    than the *least*."""
    search = RateSearch.of(scenario, criteria, workers)
    point = search.point(rate, min(least, criteria.replications))
    while point.meets is None and point.replications < criteria.replications:
        point = search.point(rate, min(2 * point.replications, criteria.replications))
    return point


def together(rate: float, traffic: Interval, model: Interval | None) -> tuple[Interval, float]:
    """The interval of both, and the model's share: in logarithms of rates, independent errors add up as squares."""
    if model is None:
        return traffic, 0.0
    below, above = ((_reach(rate, traffic.low), _reach(rate, model.low)),
                    (_reach(rate, traffic.high), _reach(rate, model.high)))
    whole = sum(one**2 + other**2 for one, other in (below, above))
    share = (below[1] ** 2 + above[1] ** 2) / whole if whole else 0.0
    return Interval(rate * exp(-hypot(*below)), rate * exp(hypot(*above))), share


def _reach(rate: float, end: float) -> float:
    return abs(log(end / rate)) if 0 < end < inf else inf


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

    def decide(self, setup: SetUp, replicas: int, rate: float, least: int = 2, requests: int = 0) -> RatePoint:
        """So many *replicas* at *rate* requests/s, run as often as it takes to tell whether they keep the targets.

        There are the *least* replications, and so many *requests* in each, unless the question says how many.
        """
        ...

    def points(self, setup: SetUp, replicas: int, rates: Sequence[float]) -> list[RatePoint]:
        """So many *replicas* at each of *rates*, run just as often as gives an interval."""
        ...

    def highest(self, setup: SetUp, replicas: int, near: float, errors: bool) -> RateAnswer:
        """The highest rate at which so many *replicas* keep the targets, *near* a guess.

        Its interval tells what the model's *errors* may change, too, if they are asked for.
        """
        ...


@frozen
class ByRuns:
    """Judges by runs that *workers* compute, and keeps a *journal* of them.

    A run is made once, however often it is asked for: what shows how many replicas a rate needs is part of what shows
    the highest rate of so many.
    """

    criteria: Criteria
    workers: RunWorkers
    journal: Journal
    _ended: dict[tuple[Any, ...], Observation] = field(factory=dict, init=False)
    _criteria: dict[tuple[str, int], Criteria] = field(factory=dict, init=False)
    _seconds: dict[str, float] = field(factory=dict, init=False)

    @property
    def requests(self) -> int:
        """The most requests that a replication had."""
        return max((criteria.count for criteria in self._criteria.values()), default=self.criteria.count)

    def begin(self, made: Sequence[SetUp]) -> list[tuple[Light, float] | str]:
        work, alone = partial(_begin, self.criteria), [setup.replicas(1) for setup in made]
        begun = in_order(self.workers.run(work, alone), len(made))
        self._seconds.update((setup.name, one[0].seconds) for setup, one in zip(made, begun, strict=True)
                             if not isinstance(one, str))
        return begun

    def decide(self, setup: SetUp, replicas: int, rate: float, least: int = 2, requests: int = 0) -> RatePoint:
        criteria = self._criteria_of(setup, replicas, rate, requests)
        return decide(setup.replicas(replicas), rate, criteria, _Remembering(self, setup, replicas, criteria), least)

    def points(self, setup: SetUp, replicas: int, rates: Sequence[float]) -> list[RatePoint]:
        criteria = self._criteria_of(setup, replicas, rates[0]) if rates else self.criteria
        search = RateSearch.of(setup.replicas(replicas), criteria, _Remembering(self, setup, replicas, criteria))
        search.observe([(rate, number, None) for rate in rates for number in range(FEWEST)])
        return [search.known(rate) for rate in rates]

    def highest(self, setup: SetUp, replicas: int, near: float, errors: bool) -> RateAnswer:
        criteria = self._criteria_of(setup, replicas, near)
        criteria = evolve(criteria, model_errors=criteria.model_errors and errors)
        return highest_rate(setup.replicas(replicas), criteria, _Remembering(self, setup, replicas, criteria), near)

    def _criteria_of(self, setup: SetUp, replicas: int, rate: float, requests: int = 0) -> Criteria:
        """Those with as many *requests* as a set-up with so many *replicas* needs, when it is first asked for.

        Arrivals have to last several times as long as a request takes, or a large fleet is never busy as it would be.
        """
        least = max(requests, ceil(LIVES * rate * max(self._seconds.values(), default=0.0)))
        criteria = self.criteria
        if not criteria.requests:
            criteria = evolve(criteria, requests=max(criteria.count, least))
        return self._criteria.setdefault((setup.name, replicas), criteria)


@frozen
class _Remembering:
    """The workers of a judge, for runs of one set-up with so many replicas: none is computed that is known."""

    judge: ByRuns
    setup: SetUp
    replicas: int
    criteria: Criteria

    @property
    def count(self) -> int:
        return self.judge.workers.count

    def run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if not all(isinstance(item, RateRun) for item in items):
            yield from self.judge.workers.run(work, items)
            return
        ended, journal = self.judge._ended, self.judge.journal
        keys = [(self.setup.name, self.replicas, (run.rate, run.replication, run.draw)) for run in items]
        yield from ((number, ended[key]) for number, key in enumerate(keys) if key in ended)
        new = [number for number, key in enumerate(keys) if key not in ended]
        journal.begin(self.setup.name, self.replicas, [items[number] for number in new])
        for number, seen in self._computed(work, items, new):
            ended[keys[number]] = seen
            journal.end(self.setup.name, self.setup.settings, self.replicas, self.criteria, items[number], seen)
            yield number, seen

    def _computed(self, work: Callable[[Any], Any], items: Sequence[RateRun], new: Sequence[int]
                  ) -> Iterator[tuple[int, Observation]]:
        """The *new* of *items*: those that a killed process has computed are in the journal."""
        journal = self.judge.journal
        kept = {number: seen for number in new if (seen := journal.recall(self.criteria, items[number])) is not None}
        yield from kept.items()
        left = [number for number in new if number not in kept]
        for at, seen in self.judge.workers.run(work, [items[number] for number in left]):
            journal.remember(self.criteria, items[left[at]], seen)
            yield left[at], seen


def _begin(criteria: Criteria, scenario: Scenario) -> tuple[Light, float] | str:
    try:
        light = at_light_load(criteria.targets, scenario)
        return light, 0.0 if light.missed else throughput(criteria, scenario)
    except KsimError as error:
        return str(error)


def keeps(point: RatePoint) -> bool:
    """Whether *point* keeps all targets, by its estimate where the runs cannot tell surely."""
    if point.meets is not None:
        return point.meets
    return all(ratio <= 1 for ratio, _ in point.excess.values())


#: With so many replicas that requests keep each busy for less than this share of its time, more change nothing.
_IDLE = 0.25
#: How much of what it completes under a flood a set-up usually carries within its targets.
KEPT = 0.75


@frozen
class Fewest:
    """`replicas` that carry the rate, and how the run with so many went.

    Where no number does, `replicas` is None, and `point` is of the largest that was tried.
    """

    replicas: int | None
    point: RatePoint


def fewest(judge: Judge, setup: SetUp, rate: float, light: Light, flood: float) -> Fewest:
    """Search from what *flood* says, the requests/s that one replica completes where all arrive at once.

    Replication r is the same traffic for any number of replicas, so that more of them do not look worse by chance.
    Raises KsimError for a rate that no number carries, as there can be only so many.
    """
    if flood * setup.most < rate:
        raise KsimError(f"{rate:g} requests/s are more than {setup.most:,} replicas complete, which are the most there"
                        f" can be")
    points: dict[int, RatePoint] = {}

    def carries(count: int) -> bool:
        if count not in points:
            points[count] = judge.decide(setup, count, rate)
        return keeps(points[count])

    most = max(1, min(setup.most, ceil(rate * light.seconds / _IDLE)))
    first = max(1, round(min(most, rate / (KEPT * flood))))
    between = _down(carries, first) if carries(first) else _up(carries, first, most)
    if between is None:
        return Fewest(None, points[max(points)])
    count = _bisected(carries, *between)
    return Fewest(count, points[count])


def _down(carries: Callable[[int], bool], enough: int) -> tuple[int, int]:
    """Below *enough*, which carries: a number that does not, and one that does, in steps that double."""
    step = 1
    while enough > 1:
        lower = max(1, enough - step)
        if not carries(lower):
            return lower, enough
        enough, step = lower, 2 * step
    return 0, 1


def _up(carries: Callable[[int], bool], short: int, most: int) -> tuple[int, int] | None:
    """Above *short*, which does not carry: the same; None where no number up to *most* does."""
    step = 1
    while short < most:
        higher = min(most, short + step)
        if carries(higher):
            return short, higher
        short, step = higher, 2 * step
    return None


def _bisected(carries: Callable[[int], bool], short: int, enough: int) -> int:
    """The least number above *short* that *carries*; *enough* does."""
    while enough - short > 1:
        middle = (short + enough) // 2
        if carries(middle):
            enough = middle
        else:
            short = middle
    return enough
