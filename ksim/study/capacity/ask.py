"""`ksim.capacity`: ask how much load set-ups carry within latency targets, or how many GPUs a rate needs.

A question goes through the modules of this package: `targets` says what has to be kept, `traffic` makes the requests of
each replication, `trial` carries out one run, `search` looks for the highest rate of a set-up, `judge` decides which
runs that takes, `answer` compares set-ups, and `result` shows them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from attrs import evolve, frozen

from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study import grid
from ksim.study.capacity.answer import COSTS, Standing, contest, milliseconds
from ksim.study.capacity.day import LoadShape, at_its_peak
from ksim.study.capacity.journal import Journal, Say, check_unanswered, silent
from ksim.study.capacity.judge import LIVES, ByRuns, SetUp, set_ups
from ksim.study.capacity.result import Capacity
from ksim.study.capacity.search import RateSearch
from ksim.study.capacity.targets import FEWEST, Target
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Criteria
from ksim.study.directory import StudyDirectory
from ksim.study.grid import SettingValues
from ksim.study.plan import StudyPlan, replication_seed
from ksim.study.planning.options import EstimatedFleet
from ksim.study.planning.ranking import PlanQuestion
from ksim.study.planning.requests import SampledRequests
from ksim.study.planning.step_prices import LoadSample
from ksim.study.workers import InProcess, Where
from ksim.views.wording import number

__all__ = ["COSTS", "FEWEST", "Capacity", "CapacityPlan", "assumptions", "axes_of", "capacity", "criteria_of"]

#: How many requests tell the lengths.
_SAMPLE = 1000
#: The parts of an engine's description, in their order.
_ENGINE: tuple[Callable[[Deployment], str], ...] = (
    lambda made: made.model.name,
    lambda made: f"weights {made.serve.precision.weights}",
    lambda made: f"KV cache {made.serve.precision.cache}",
    lambda made: made.version.name,
    lambda made: f"{made.serve.gpu_memory_utilization:.3g} of the GPU's memory",
    lambda made: f"context {made.serve.max_model_len:,}",
    lambda made: f"{made.serve.max_num_batched_tokens:,} tokens and {made.serve.max_num_seqs:,} sequences a step",
    lambda made: f"prefix caching {'on' if made.serve.enable_prefix_caching else 'off'}",
)


def assumptions(scenario: Scenario, made: Sequence[SetUp], criteria: Criteria) -> tuple[str, ...]:
    """The assumptions behind an answer: a line each for engines, requests and prices.

    A setting that differs between set-ups or pools is listed with all its values.
    """
    deployments = [pool.deployment for setup in made if setup.scenario is not None
                   for pool in Fleet.of(setup.scenario).pools]
    engines = ", ".join(_together(text(one) for one in deployments) for text in _ENGINE)
    return (f"engines: {engines}", f"requests: {', '.join(_requests(scenario, criteria))}",
            f"prices: {', '.join(_prices(scenario))}")


def _together(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _requests(scenario: Scenario, criteria: Criteria) -> Iterator[str]:
    """Lengths and prompts that come again, of the first requests of the first replication."""
    traffic = Traffic.of(scenario.workload, criteria.count)
    drawn = [*islice(traffic.requests(1.0, replication_seed(criteria.seed, 0)), _SAMPLE)]
    for name, tokens in (("prompts", [request.prompt for request in drawn]),
                         ("outputs", [request.output for request in drawn])):
        median, high = np.percentile(tokens, (50, 99))
        yield f"{name} of {np.mean(tokens):,.0f} tokens on the mean (p50 {median:,.0f}, p99 {high:,.0f})"
    sharing = sum(bool(request.chunks) for request in drawn)
    yield f"{sharing / len(drawn):.0%} may share prefixes" if sharing else "none shares a prefix"
    if mix := scenario.workload.mix:
        yield f"{', '.join(mix)} together, each with its share of the rate"
        if own := [name for name, part in mix.items() if part.slo is not None]:
            yield f"targets are of all requests alike; slo of {', '.join(own)} is not looked at"
        return
    synthetic = scenario.workload.synthetic
    yield f"{synthetic.arrivals.process} arrivals" if synthetic else "arrivals of the trace, faster or slower"


def _prices(scenario: Scenario) -> Iterator[str]:
    energy = scenario.energy
    hourly = energy.price_per_gpu_hour
    if isinstance(hourly, Mapping):
        yield ", ".join(f"{gpu} ${price:g}/h" for gpu, price in hourly.items())
    else:
        yield "none of GPUs" if hourly is None else f"${hourly:g}/h a GPU"
    yield "none of energy" if energy.price_per_kwh is None else f"${energy.price_per_kwh:g}/kWh at PUE {energy.pue:g}"


#: The axes of set-ups: values by dotted key, or texts such as "gpu=h100,h200".
Over = Mapping[str, Sequence[Any]] | Sequence[str]


def capacity(scenario: Scenario | str | PathLike[str], slo: Sequence[str | Target] = (), rate: float | None = None,
             over: Over = (), *, requests: int | None = None, replications: int | None = None,
             model_errors: bool = True, seed: int | None = None, jobs: int | None = None, on: str = "processes",
             address: str | None = None, output: str | PathLike[str] | None = None, force: bool = False,
             resume: bool = False, title: str = "", on_progress: Say = silent,
             on_estimate: Callable[[str], None] = lambda _: None) -> Capacity:
    """The highest request rate at which *scenario* keeps its latency targets or, with a *rate*, the fewest GPUs for it.

    *slo* are targets such as "ttft:p99:1s"; without any, those of the scenario's `[slo]` count, for 99 % of requests.
    *over* makes a set-up of each combination of some settings, and the best comes first.  A replication has so many
    *requests*, and a rate gets up to so many *replications*.  Of a load that varies, the *rate* is by default that of
    its busiest time, and a note says what GPUs that follow it would save.  The study is kept in *output*, and *resume*
    goes on with what is there.  *on_estimate* is told what the set-ups carry by the estimates of `ksim.plan`, before
    any is run.
    Raises KsimError.
    """
    read, rate, shape = _asked(scenario, rate)
    criteria, notes = criteria_of(read, slo, requests, replications, model_errors, read.seed if seed is None else seed)
    plan = CapacityPlan(read, criteria, rate, tuple(axes_of(over)))
    RateSearch.of(read, criteria, InProcess())  # refuse what is too short, or has no rate, before anything runs
    made = set_ups(read, plan.over)
    folder, where = None if output is None else Path(output), Where(jobs, on, address)
    plan.check(folder, resume, force)
    estimates = [*_estimates(read, criteria, made, rate)]
    notes = (*notes, *estimates)
    name = title or (Path(read.model).name if isinstance(scenario, Scenario) else Path(scenario).stem)
    with where.workers() as pool, plan.kept(folder, name, resume, force) as study:
        for text in estimates:
            on_estimate(text)
        journal = Journal(len(made) + 2, study if isinstance(study, StudyDirectory) else None, on_progress)
        with journal.finished():
            judge = ByRuns(criteria, pool, journal)
            standings = contest(judge, made, rate, journal.stage)
        notes = (*notes, *_notes(standings), *_long(criteria, judge.requests), *_followed(shape, standings[0]))
        answer = Capacity(name, criteria, rate, standings, notes, journal.runs, assumptions(read, made, criteria))
        if journal.directory is not None:
            answer.save(journal.directory.path)
        journal.forget()
    return answer


def _estimates(scenario: Scenario, criteria: Criteria, made: Sequence[SetUp], rate: float | None) -> Iterator[str]:
    """What `ksim plan` estimates of each set-up; nothing of fleets of which it knows no steady state, and nothing where
    all miss the targets: the answer comes at once, and says why."""
    built = [setup for setup in made if setup.scenario is not None]
    if built:
        load = SampledRequests.of(scenario, rate or 1.0, criteria).whole
        fleets = [EstimatedFleet.of(load, _engines(setup)) for setup in built]
        texts = [None if fleet is None else _estimate(load, criteria, setup, fleet, rate)
                 for setup, fleet in zip(built, fleets, strict=True)]
        if any(texts):
            said = [f"{setup.name} {text or 'misses the targets'}" for setup, text in zip(built, texts, strict=True)
                    if text is not None]
            yield f"estimated, before anything is run: {'; '.join(said)}"


def _engines(setup: SetUp) -> list[tuple[str, Deployment, int]]:
    """The role, the deployment and the number of the engines of each pool of *setup*."""
    assert setup.scenario is not None, "it could be built"
    return [(pool.role, pool.deployment, len(pool.places) // pool.deployment.serve.data_parallel_size)
            for pool in Fleet.of(setup.scenario).pools]


def _estimate(load: LoadSample, criteria: Criteria, setup: SetUp, fleet: EstimatedFleet, rate: float | None) -> str:
    """What *setup* carries, or how many GPUs of it carry *rate*; "" for nothing, and for no number of them."""
    if rate is None:
        most = fleet.highest_rate(load, criteria.targets)
        return f"{number(most)} requests/s" if most else ""
    times, found = fleet.fewest(PlanQuestion(load, rate, criteria.targets))
    if not times:
        return ""
    values = ", ".join(f"{target.metric} {target.statistic} {milliseconds(value)}" for target, value in found.items())
    return f"{times * setup.gpus:,} GPU{'s' * (times * setup.gpus > 1)} ({values})"


@frozen
class CapacityPlan(StudyPlan):
    """A question of capacity: what each set-up of `over` carries, or how many replicas of it a `rate` needs."""

    kind: ClassVar[str] = "capacity"
    criteria: Criteria
    rate: float | None
    over: tuple[SettingValues, ...]

    @property
    def command(self) -> dict[str, Any]:
        criteria = self.criteria
        return {"targets": [*map(str, criteria.targets)], "rate": self.rate,
                "over": {axis.key: list(axis.values) for axis in self.over}, "requests": criteria.count,
                "replications": criteria.replications, "model_errors": criteria.model_errors, "seed": criteria.seed}

    def check(self, path: Path | None, resume: bool = False, force: bool = False) -> None:
        if resume and path is not None:
            check_unanswered(path)
        super().check(path, resume, force)


def criteria_of(scenario: Scenario, slo: Sequence[str | Target], requests: int | None, replications: int | None,
            model_errors: bool, seed: int) -> tuple[Criteria, tuple[str, ...]]:
    """The criteria of a question, and what to know of its targets; raises ConfigError where there is none."""
    targets = tuple(target if isinstance(target, Target) else Target.parse(target) for target in slo)
    notes = () if targets else ("the targets are those of the scenario's [slo], for 99 % of requests each",)
    targets = tuple(dict.fromkeys(targets or _of_scenario(scenario)))
    if not targets:
        raise ConfigError("--slo", "name a target, such as ttft:p99:1s, or state [slo] in the scenario")
    criteria = Criteria(targets, requests, model_errors=model_errors, seed=seed)
    return criteria if replications is None else evolve(criteria, replications=replications), notes


def _of_scenario(scenario: Scenario) -> Iterator[Target]:
    for metric in ("ttft", "tpot", "e2el"):
        if (limit := getattr(scenario.slo, metric)) is not None:
            yield Target(metric, "p99", limit)


def axes_of(over: Over) -> list[SettingValues]:
    """The axes that *over* names; raises ConfigError for a range, of which set-ups cannot be made."""
    made = []
    for axis in grid.axes_of(over):
        if isinstance(axis, grid.Range):
            raise ConfigError("--over", f"{axis.key}: set-ups are compared value by value; list them, such as 1,2,4")
        made.append(axis)
    return made


def _asked(scenario: Scenario | str | PathLike[str], rate: float | None) -> tuple[Scenario, float | None,
                                                                                 LoadShape | None]:
    """The *scenario*, steady, and the *rate* to carry, with how a load varies whose busiest time that is by default."""
    read, shape = at_its_peak(scenario if isinstance(scenario, Scenario) else Scenario.read(Path(scenario)))
    rate = shape.peak if shape is not None and rate is None else rate
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError("--rate", f"expected requests/s, more than 0, not {rate!r}")
    return read, rate, shape


def _followed(shape: LoadShape | None, best: Standing) -> Iterator[str]:
    """What GPUs that follow a load of this *shape* would save."""
    if shape is not None and best.stands and best.point is not None:
        highest = best.answer.rate if best.answer else best.point.rate
        yield shape.said(best.replicas, best.setup.gpus, max(highest, best.point.rate) / best.replicas)


def _long(criteria: Criteria, requests: int) -> Iterator[str]:
    if requests > criteria.count:
        yield (f"replications have up to {requests:,} requests, so that arrivals last {LIVES} times as long as a"
               f" request takes alone")


def _notes(standings: Sequence[Standing]) -> list[str]:
    """Notes on the traffic, each once, and on intervals that leave the model's errors out."""
    notes = list(dict.fromkeys(note for one in standings if one.answer for note in one.answer.notes))
    if standings[0].answer and standings[0].answer.model and any(one.answer for one in standings[1:]):
        notes.append(f"the model's errors are part of the interval of {standings[0].setup.name} alone")
    return notes
