"""One run of a study: a scenario is played, looked at while it runs, and stopped early where a rule says why.

`sweep`, `routers`, `tune` and `capacity` play all their runs here.  They differ in what they ask: which settings, which
requests, and which `StopRule`.  Runs that follow one another in a process share their tables of prices, as most of a
short run is spent on pricing steps; no bit of a result depends on what ran before.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Protocol

from attrs import define, evolve, field, fields, frozen

from ksim.cost.step import Passes, StepTimer, Timer
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.errors import KsimError, UnknownKey, UnknownName
from ksim.results.attribution import mean_phases
from ksim.scenario.defaults import Deployment
from ksim.scenario.engines import with_own_settings
from ksim.scenario.scenario import Scenario
from ksim.simulation import simulate
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import Running
from ksim.study.grid import Settings, value_text
from ksim.views.result import Result
from ksim.workload.rows import Ledger

#: Where the summary of an explained run has its phases.
PHASES = "phases"


class Stopped(KsimError):
    """A run was stopped early, for the reason given."""


class StopRule(Protocol):
    """Why a run need not go on to its end."""

    @property
    def of_ends(self) -> bool:
        """Whether the run is looked at when so many requests have ended, and not when so many have arrived."""
        ...

    def looks(self, scenario: Scenario) -> Iterable[float]:
        """The number of requests at each look at a run of *scenario*, in ascending order."""
        ...

    def reason(self, running: Running, requests: int) -> str:
        """Why *running* is to be stopped after so many *requests*; "" where it goes on."""
        ...


def play(scenario: Scenario, requests: Iterable[Request] | None = None, rule: StopRule | None = None,
         on_end: Callable[[], None] = lambda: None) -> Result:
    """Run *scenario* with the requests of its workload, or with *requests*, which are ordered by arrival.

    `on_end` is called for each request that ends.  Raises Stopped as soon as *rule* says why, and what `simulate`
    raises.
    """
    fleet, ledger = warm(Fleet.of(scenario)), Ledger()
    arriving = simulate.requests_of(fleet, ledger) if requests is None else requests
    if rule is None:
        return simulate.play(fleet, arriving, on_end, ledger)
    watch = _Watch(rule, on_end)
    if rule.of_ends:
        return simulate.play(fleet, arriving, watch.ended, ledger, begin=watch.begin)
    return simulate.play(fleet, watch.arriving(arriving), on_end, ledger, begin=watch.begin)


@define
class _Watch:
    """Looks at one run when its `rule` says so; a look reads the log and changes nothing."""

    rule: StopRule
    on_end: Callable[[], None]
    _running: Running = field(init=False)
    _ended: int = field(default=0, init=False)
    _due: float = field(default=inf, init=False)
    _wake: Any = field(default=None, init=False)

    def begin(self, running: Running) -> None:
        """Note what is looked at; looks at ends are events of their own, as engines are between two steps then."""
        self._running = running
        if self.rule.of_ends:
            running.env.process(self._looks())

    def arriving(self, requests: Iterable[Request]) -> Iterator[Request]:
        """*requests* as the cluster pulls them, with a look before those that the rule names."""
        looks = iter(self.rule.looks(self._running.fleet.scenario))
        due = next(looks, inf)
        for arrived, request in enumerate(requests):
            if arrived >= due:
                self._look(arrived)
                due = next(looks, inf)
            yield request

    def ended(self) -> None:
        """Count a request that has ended, and wake `_looks` if it is time."""
        self._ended += 1
        if self._ended >= self._due and not self._wake.triggered:
            self._wake.succeed()
        self.on_end()

    def _looks(self) -> Generator[Any, Any, None]:
        for due in self.rule.looks(self._running.fleet.scenario):
            self._due, self._wake = due, self._running.env.event()
            if self._ended < due:
                yield self._wake
            self._look(self._ended)
        self._due = inf

    def _look(self, requests: int) -> None:
        if reason := self.rule.reason(self._running, requests):
            raise Stopped(reason)


@frozen
class Outcome:
    """The outcome of a run with these `settings`: its summary, and its scenario with every setting filled in.

    `problem` says why there is no summary; `refused` is true where that was clear before any request had ended, as of a
    model that does not fit.  `unserved` says which requests were not served, and why.
    """

    settings: Settings
    summary: Mapping[str, Any] | None = None
    scenario: str = ""
    problem: str = ""
    unserved: str = ""
    refused: bool = False

    @property
    def unserved_share(self) -> float:
        """The share of requests that were rejected or unfinished."""
        if not self.unserved or self.summary is None:
            return 0.0
        return float(self.summary["failed"] + self.summary["unfinished"]) / _requests(self.summary)


def scenario_at(scenario: Scenario, changes: Settings) -> Scenario:
    """*scenario* with *changes*; where they name the engine, with the settings that it has."""
    made = scenario.with_values(changes)
    return with_own_settings(made) if "engine" in changes else made


def outcome(scenario: Scenario, changes: Settings, rule: StopRule | None = None) -> Outcome:
    """Run *scenario* with *changes*; an error, or a stop by *rule*, becomes the problem of the outcome."""
    return attempt(scenario, changes, rule)[0]


def explained(scenario: Scenario, changes: Settings) -> Outcome:
    """The same as `outcome`, whose summary has the `phases` behind its mean TTFT and TPOT, too."""
    ended, result = attempt(scenario, changes)
    if result is None or ended.summary is None:
        return ended
    return evolve(ended, summary={**ended.summary, PHASES: mean_phases(result.attribution, result.requests)})


def attempt(scenario: Scenario, changes: Settings, rule: StopRule | None = None) -> tuple[Outcome, Result | None]:
    """The same, and the run itself, which is None where it failed or was stopped."""
    ended: list[None] = []
    try:
        result = play(scenario_at(scenario, changes), rule=rule, on_end=lambda: ended.append(None))
        return Outcome(changes, result.summary, result.scenario, unserved=_unserved(result)), result
    except KsimError as error:
        problem = str(error)
    except Exception as error:  # in a plug-in, or a bug: the other points still run
        problem = f"{type(error).__name__}: {error}; `ksim run` with these settings shows where"
        ended.append(None)
    return Outcome(changes, scenario=_toml(scenario, changes), problem=problem, refused=not ended), None


def _toml(scenario: Scenario, changes: Settings) -> str:
    """*scenario* with *changes* in TOML; "" where there cannot be such a scenario."""
    try:
        return scenario_at(scenario, changes).to_toml()
    except KsimError:
        return ""


def _unserved(result: Result) -> str:
    """The number of requests that were not served, and why the first was not; "" if all were served."""
    summary, reasons = result.summary, result.history.requests.reasons
    left = [f"{summary[status]:,} {word}" for status, word in (("failed", "rejected"), ("unfinished", "unfinished"))
            if summary[status]]
    if not left:
        return ""
    why = f": {next(iter(reasons.values()))}" if reasons else ""
    return f"{' and '.join(left)} of {_requests(summary):,} requests{why}"


def _requests(summary: Mapping[str, Any]) -> int:
    return sum(summary[status] for status in ("completed", "failed", "unfinished"))


def problem_of(scenario: Scenario, settings: Settings) -> str:
    """Why *scenario* with *settings* cannot be built, without running it; "" where it can.

    Raises UnknownName for an unknown name, which is a mistake in any study, unlike a model that does not fit.
    """
    try:
        simulate.try_to_build(scenario_at(scenario, settings))
    except UnknownName:
        raise
    except KsimError as error:
        return str(error)
    return ""


def check_names(scenario: Scenario, points: Sequence[Settings],
                mistakes: tuple[type[Exception], ...] = (UnknownName, UnknownKey)) -> None:
    """Raise the UnknownName or UnknownKey of a name or key that is not there, before anything runs."""
    for settings in _with_new_names(points):
        try:
            simulate.try_to_build(scenario_at(scenario, settings))
        except mistakes:
            raise
        except Exception:  # it will be the problem of this point
            continue


def _with_new_names(points: Sequence[Settings]) -> Iterator[Settings]:
    """Those of *points* in which a key or a value comes for the first time; numbers are no names."""
    seen: set[tuple[str, str]] = set()
    for settings in points:
        names = {(key, "" if isinstance(value, int | float) else value_text(value)) for key, value in settings.items()}
        if not names <= seen:
            seen |= names
            yield settings


#: Timers whose tables of prices a process keeps: those of the deployments that ran last.
_KEPT = 64
_timers: OrderedDict[Hashable, StepTimer] = OrderedDict()


def warm(fleet: Fleet) -> Fleet:
    """*fleet*, whose timers share their tables of prices with earlier runs of this process."""
    return evolve(fleet, pools=tuple(evolve(pool, deployment=warmed(pool.deployment)) for pool in fleet.pools))


def warmed(deployment: Deployment) -> Deployment:
    """*deployment*, whose timers do so."""
    return _Warm.like(deployment)


def _links(deployment: Deployment) -> Hashable:
    """What all collectives have in common, whatever GPUs they are among: their number of nodes decides nothing.

    Replicas of a set-up, of which some take more nodes than others, share prices.
    """
    system, network = deployment.system, deployment.network
    alike = system if system.leaf is not None else evolve(system, nodes=1)
    return repr((alike, network.algorithms, network.measured, network.channel, network.deviation))


@frozen
class _Warm(Deployment):
    """A deployment whose timers share prices with those of the same `hardware`: whatever decides what kernels cost.

    So do engines whose GPUs have the same links between them.
    """

    hardware: Hashable = field(kw_only=True, repr=False)

    @classmethod
    def like(cls, deployment: Deployment) -> "_Warm":
        """*deployment*, with timers that share prices."""
        choice = deployment.scenario.oracle
        assert choice is not None, "a deployment has an oracle"
        files = tuple((path, path.stat().st_mtime_ns) for path in map(Path, map(str, choice.options.values()))
                      if path.is_file())
        parts = ("gpu", "routing", "version")
        hardware = (*(repr(getattr(deployment, name)) for name in parts), _links(deployment), repr(choice),
                    catalog.find("oracles", choice.name), files, deployment.scenario.kernel_errors)
        return cls(**{one.name: getattr(deployment, one.name) for one in fields(Deployment)}, hardware=hardware)

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        own = super().timers(first, firsts)
        for timer in own:
            passes = (timer.main, *(each.timer for each in timer.others)) if isinstance(timer, Passes) else (timer,)
            for number, each in enumerate(passes):
                self._share(each, number, self.patterns(each.groups))
        return own

    def _share(self, timer: StepTimer, number: int, groups: Hashable) -> None:
        """Let *timer* have the prices of one that is alike but for its CUDA graphs, or keep it for those to come."""
        key = (self.hardware, timer.model.name, number, timer.shard, timer.host, timer.overlap, timer.average,
               groups)
        known = _timers.get(key)
        if known is not None and known.model == timer.model:
            timer.price_as(known)
        else:
            _timers[key] = timer
        _timers.move_to_end(key)
        while len(_timers) > _KEPT:
            _timers.popitem(last=False)
