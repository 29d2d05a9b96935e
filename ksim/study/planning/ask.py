"""`ksim.plan`: which deployment of a model carries a load within latency targets at the least cost.

A question goes through the modules of this package: `candidates` makes the deployments, `estimate` has the steady state
of their engines, `ranking` says how many replicas each needs, `race` simulates the finalists, and `result` shows what
came out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from attrs import evolve, field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import gpu_of, system_of
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.ask import Over, assumptions, axes_of, criteria_of
from ksim.study.capacity.day import LoadShape, at_its_peak
from ksim.study.capacity.journal import Journal, Say, check_unanswered, silent
from ksim.study.capacity.judge import ByRuns
from ksim.study.capacity.targets import Target, seconds_of
from ksim.study.capacity.trial import Criteria
from ksim.study.directory import StudyDirectory
from ksim.study.grid import SettingValues
from ksim.study.plan import StudyPlan
from ksim.study.planning.candidates import LIMITS, Candidates, GpuKind, candidates
from ksim.study.planning.options import fastest, options
from ksim.study.planning.race import Finalist, Race, set_up
from ksim.study.planning.ranking import Option, PlanQuestion, dominates
from ksim.study.planning.requests import SampledRequests
from ksim.study.planning.result import Change, DeploymentPlan
from ksim.study.planning.rounds import rounds
from ksim.study.planning.step_prices import LoadSample
from ksim.study.workers import Where
from ksim.views.wording import OBJECTIVES

_GPU = re.compile(r"(?P<name>[^:=]+)(:(?P<most>\d+))?(=(?P<price>.+))?")


def plan(scenario: Scenario | str | PathLike[str], rate: float | None = None, slo: Sequence[str | Target] = (),
         gpus: Sequence[str] = (), minimize: Sequence[str] = (), over: Over = (), *, time: str | float = "60s",
         finalists: int = 5, requests: int | None = None, replications: int = 3, seed: int | None = None,
         jobs: int | None = 1, output: str | PathLike[str] | None = None, force: bool = False, resume: bool = False,
         title: str = "", on_progress: Say = silent) -> DeploymentPlan:
    """The deployment of *scenario*'s model that carries *rate* requests/s within *slo* at the least cost.

    The rate is by default that of the scenario; of a load that varies, that of its busiest time.

    *gpus* are texts such as "h100", "h100=2.5" with its price in dollars an hour, or "h100:16" where there are no more;
    by default, the scenario's.  *minimize* names what to minimise: gpus, usd, joules, carbon; several give a front, and
    the least product is the best.  *over* has values for keys, as of `ksim.capacity`, in place of those that are tried;
    of a Scenario whose engine is the usual one, it names the engine where no other shall be tried.  No simulation of
    another of up to *finalists* begins after *time*.  Raises KsimError.
    """
    read = scenario if isinstance(scenario, Scenario) else Scenario.read(Path(scenario))
    named = over if isinstance(scenario, Scenario) else with_engine(over, catalog.read(Path(scenario)))
    asked = PlanStudy.of(read, rate, slo, gpus, minimize, named, requests=requests, replications=replications,
                        seed=seed)
    until, where = monotonic() + seconds_of("--time", time), Where(jobs)
    folder = None if output is None else Path(output)
    asked.check(folder, resume, force)
    name = title or (Path(read.model).name if isinstance(scenario, Scenario) else Path(scenario).stem)
    with where.workers() as pool, asked.kept(folder, name, resume, force) as study:
        journal = Journal(2 + finalists, study if isinstance(study, StudyDirectory) else None, on_progress)
        journal.stage("candidates")
        found = candidates(asked.scenario, asked.kinds, asked.over)
        _check_lengths(found, asked.requests.whole)
        journal.stage(f"estimates of {found.count:,} candidates")
        ranked, count = rounds(asked.scenario, asked.over, asked.question, asked.requests, found, asked.objectives)
        with journal.finished():
            judge = ByRuns(asked.criteria, pool, journal)
            race = Race(asked.scenario, asked.question, judge, asked.objectives, until, journal.stage)
            ended = race.run(front_first(best_of_families(ranked), asked.objectives), finalists)
        answer = _answer(asked, name, (count, found), ranked, ended, journal.runs)
        if journal.directory is not None:
            answer.save(journal.directory.path)
        journal.forget()
    return answer


def with_engine(over: Over, said: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values by key of *over*, and the engine that what is *said* names: no other is tried beside it."""
    named = {axis.key: axis.values for axis in axes_of(over)}
    return {"engine": (said["engine"],), **named} if "engine" in said else named


@frozen
class PlanStudy(StudyPlan):
    """A question of `ksim plan`: the `kinds` of GPUs, the `rate`, the `criteria`, and what is to be minimised."""

    kind: ClassVar[str] = "plan"
    kinds: tuple[GpuKind, ...]
    rate: float
    criteria: Criteria
    objectives: tuple[str, ...]
    over: tuple[SettingValues, ...]
    requests: SampledRequests = field(repr=False)
    #: How the load varies whose busiest time is asked about.
    shape: LoadShape | None = field(default=None, repr=False)

    @classmethod
    def of(cls, scenario: Scenario, rate: float | None, slo: Sequence[str | Target], gpus: Sequence[str],
           minimize: Sequence[str], over: Over, *, requests: int | None, replications: int, seed: int | None
           ) -> "PlanStudy":
        """Check what is asked; raises ConfigError for what no plan can be made of."""
        if scenario.pools:
            raise ConfigError("pools", "a plan makes the pools itself; leave them out")
        scenario, shape = at_its_peak(scenario)
        synthetic = scenario.workload.synthetic
        rate = rate if rate is not None else synthetic.arrivals.rate if synthetic is not None else None
        if rate is None or not 0 < rate < float("inf"):
            raise ConfigError("--rate", "name the requests/s to carry" if rate is None else
                              f"expected requests/s, more than 0, not {rate!r}")
        criteria, _ = criteria_of(scenario, slo, requests, replications, False, scenario.seed if seed is None else seed)
        kinds, priced = _kinds(scenario, gpus)
        objectives = _objectives(minimize, priced)
        return cls(priced, kinds, rate, criteria, objectives, over=tuple(axes_of(over)),
                   requests=SampledRequests.of(scenario, rate, criteria), shape=shape)

    @property
    def question(self) -> PlanQuestion:
        return PlanQuestion(self.requests.whole, self.rate, self.criteria.targets)

    @property
    def command(self) -> dict[str, Any]:
        criteria = self.criteria
        return {"targets": [*map(str, criteria.targets)], "rate": self.rate,
                "gpus": [kind.name if kind.most is None else f"{kind.name}:{kind.most}" for kind in self.kinds],
                "minimize": list(self.objectives), "over": {axis.key: list(axis.values) for axis in self.over},
                "requests": criteria.requests, "replications": criteria.replications, "seed": criteria.seed}

    def check(self, path: Path | None, resume: bool = False, force: bool = False) -> None:
        if resume and path is not None:
            check_unanswered(path)
        super().check(path, resume, force)


def _kinds(scenario: Scenario, gpus: Sequence[str]) -> tuple[tuple[GpuKind, ...], Scenario]:
    """The kinds of GPUs of texts such as "h100:16=2.5", and *scenario* with their prices."""
    if not gpus:
        if scenario.gpu is None and scenario.system is None:
            raise ConfigError("--gpu", "name the GPUs that may be had, such as h100, or h100=2.5 with dollars an hour")
        return (GpuKind(str(scenario.gpu or system_of(None, scenario.system, None).gpu)),), scenario
    parsed = [_parsed(text) for text in gpus]
    prices = {kind.name: price for kind, price in parsed if price is not None}
    if prices and (open_ := [kind.name for kind, _ in parsed if kind.name not in prices]):
        raise ConfigError("--gpu", f"{', '.join(open_)} has no price, and {', '.join(prices)} has one; give all of them"
                                   f" one, such as {open_[0]}=2.5, or none")
    plain = evolve(scenario, gpu=parsed[0][0].name, system=None)
    return tuple(kind for kind, _ in parsed), (plain.with_values({"energy.price_per_gpu_hour": prices}) if prices else
                                               plain)


def _parsed(text: str) -> tuple[GpuKind, float | None]:
    match = _GPU.fullmatch(text.strip())
    if match is None:
        raise ConfigError("--gpu", f"expected NAME[:COUNT][=DOLLARS], such as h100 or h100:16=2.5, not {text!r}")
    gpu_of(match["name"])
    try:
        price = None if match["price"] is None else float(match["price"])
    except ValueError:
        price = -1.0
    if price is not None and not 0 < price < float("inf"):
        raise ConfigError("--gpu", f"{text}: expected dollars an hour of a GPU after =, not {match['price']!r}")
    return GpuKind(match["name"], None if match["most"] is None else int(match["most"])), price


def _objectives(minimize: Sequence[str], scenario: Scenario) -> tuple[str, ...]:
    energy = scenario.energy
    known = {"gpus": True, "joules": True, "usd": energy.price_per_gpu_hour is not None,
             "carbon": energy.carbon_intensity is not None or energy.grid is not None}
    for name in minimize:
        if name not in OBJECTIVES:
            raise ConfigError("--minimize", f"expected {', '.join(OBJECTIVES)}, not {name!r}")
        if not known[name]:
            raise ConfigError("--minimize", "usd needs prices; give each GPU one, such as --gpu h100=2.5"
                              if name == "usd" else "carbon needs --set energy.grid=NAME, or energy.carbon_intensity")
    return tuple(dict.fromkeys(minimize)) or ("usd" if known["usd"] else "gpus",)


def _check_lengths(found: Candidates, load: LoadSample) -> None:
    """Raise ConfigError where engines would refuse more than one request in a hundred as too long."""
    context = min(family.variants[0].serve.max_model_len or 0 for family in found.families)
    lengths = load.prompts + load.outputs
    if (share := float((lengths > context).mean())) > _TOO_LONG:
        raise ConfigError("serve.max_model_len", f"{share:.0%} of the requests are longer than {context:,} tokens, up"
                                                 f" to {lengths.max():,.0f}, and would be refused; set it to as much")


#: The share of requests that engines may refuse as too long.
_TOO_LONG = 0.01


#: Other loads: what they are, and how much longer prompts and outputs are, and how much of the reuse there is.
_OTHERS = {"prompts longer by 20 %": (1.2, 1.0, 1.0), "outputs longer by 20 %": (1.0, 1.2, 1.0),
           "half the reuse of prefixes": (1.0, 1.0, 0.5)}


def _answer(asked: PlanStudy, name: str, looked_at: tuple[int, Candidates], ranked: Sequence[Option],
            ended: Sequence[Finalist], runs: int) -> DeploymentPlan:
    best = next((one for one in ended if one.stands), None)
    taken = [best.setup] if best else [set_up(asked.scenario, option) for option in ranked[:1]]
    count, found = looked_at
    return DeploymentPlan(
        name, asked.criteria, asked.rate, tokens=asked.question.tokens, objectives=asked.objectives,
        candidates=count, left_out=found.left_out, options=ranked, finalists=ended,
        fastest={} if ranked else fastest(asked.question, found.families),
        assumptions=(*assumptions(asked.scenario, taken, asked.criteria), *_followed(asked, best)),
        changes=[*_changes(asked, best.option)] if best else [], runs=runs)


def _followed(asked: PlanStudy, best: Finalist | None) -> Iterator[str]:
    """What GPUs that follow a load that varies would save."""
    if asked.shape is not None and best is not None and best.replicas > 1:
        yield asked.shape.said(best.replicas, best.setup.gpus, asked.rate / best.replicas)


def _changes(asked: PlanStudy, best: Option) -> Iterator[Change]:
    """What other loads would need of the *best* option, by estimates."""
    question = asked.question
    for what, (prompts, outputs, reuse) in _OTHERS.items():
        def other(load: LoadSample, prompts: float = prompts, outputs: float = outputs, reuse: float = reuse
                  ) -> LoadSample:
            return evolve(load, prompts=load.prompts * prompts, cached=load.cached * prompts * reuse,
                          outputs=load.outputs * outputs, asked=None if load.asked is None else load.asked * prompts)

        if reuse == 1 or question.load.cached.any():
            loads = {id(family): other(load) for family, load in zip(best.families, best.loads, strict=True)}
            yield Change(what, _gpus_of(evolve(question, load=other(question.load)), best, loads))
    loads = {id(family): load for family, load in zip(best.families, best.loads, strict=True)}
    yield Change("20 % more requests/s", _gpus_of(evolve(question, rate=1.2 * asked.rate), best, loads))


def _gpus_of(question: PlanQuestion, best: Option, loads: Mapping[int, LoadSample]) -> int | None:
    """How many GPUs the *best* option takes for another *question*; None where no number does."""
    families = [*{id(family): family for family in best.families}.values()]
    return min((one.gpus for one in options(question, families, loads) if _alike(one, best)), default=None)


def _alike(option: Option, best: Option) -> bool:
    """Whether *option* is *best* with other numbers of replicas, of which a mix of GPUs may have none of a kind."""
    if "+" in best.gpu and all(pool["role"] == "both" for pool in best.settings["pools"].values()):
        return all(pool["role"] == "both" for pool in option.settings.get("pools", {}).values())

    def bare(one: Option) -> Any:
        pools = {name: pool["serve"] for name, pool in one.settings.get("pools", {}).items()}
        return {key: value for key, value in one.settings.items() if key not in ("pools", "nodes")} | {"pools": pools}

    return bool(bare(option) == bare(best))


def best_of_families(ranked: Sequence[Option]) -> Sequence[Option]:
    """Of *ranked* options that differ by limits of a step alone, the first."""
    seen = dict[str, Option]()
    for option in ranked:
        seen.setdefault(repr({key: value for key, value in option.settings.items() if key not in LIMITS}), option)
    return [*seen.values()]


def front_first(ranked: Sequence[Option], objectives: Sequence[str]) -> list[Option]:
    """The best of *ranked* options, then what no other beats in one of several *objectives* without losing in another,
    then the others."""
    if len(objectives) == 1:
        return [*ranked]
    front = [one for one in ranked if not any(dominates(other.costs, one.costs, objectives) for other in ranked)]
    first = {id(one) for one in front}
    return [*front, *(one for one in ranked if id(one) not in first)]
