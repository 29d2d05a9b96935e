"""`ksim.capacity`: ask how much load set-ups carry within latency targets, or how many GPUs a rate needs.

What a capacity answer takes for granted: the engines, the lengths of requests, and the prices.

Who sees the runs of a capacity question: the study's directory keeps a row of each, and progress counts them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study import grid
from ksim.study import workers as computing
from ksim.study.capacity.answer import Standing, contest
from ksim.study.capacity.judge import LIVES, ByRuns, SetUp, set_ups
from ksim.study.capacity.result import Capacity
from ksim.study.capacity.search import Remembering, Search, check_unanswered, forget
from ksim.study.capacity.targets import Target
from ksim.study.capacity.traffic import Traffic, replication_seed
from ksim.study.capacity.trial import Observation, Plan, Trial, runnable
from ksim.study.directory import StudyDirectory, check
from ksim.study.grid import Axis
from ksim.study.rows import FAILED, OK, Row
from ksim.study.workers import InProcess

#: How many requests tell the lengths.
_SAMPLE = 1000
#: What an engine is, in the order in which it is said.
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


def assumptions(scenario: Scenario, made: Sequence[SetUp], plan: Plan) -> tuple[str, ...]:
    """What the answers of set-ups *made* of *scenario* assume, in a line each for engines, requests and prices.

    What differs between set-ups or pools is said with all its values.
    """
    deployments = [pool.deployment for setup in made if setup.scenario is not None
                   for pool in Fleet.of(setup.scenario).pools]
    engines = ", ".join(_together(text(one) for one in deployments) for text in _ENGINE)
    return (f"engines: {engines}", f"requests: {', '.join(_requests(scenario, plan))}",
            f"prices: {', '.join(_prices(scenario))}")


def _together(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _requests(scenario: Scenario, plan: Plan) -> Iterator[str]:
    """Lengths and prompts that come again, of the first requests of the first replication."""
    traffic = Traffic.of(scenario.workload, plan.count)
    drawn = [*islice(traffic.requests(1.0, replication_seed(plan.seed, 0)), _SAMPLE)]
    for name, tokens in (("prompts", [request.prompt for request in drawn]),
                         ("outputs", [request.output for request in drawn])):
        median, high = np.percentile(tokens, (50, 99))
        yield f"{name} of {np.mean(tokens):,.0f} tokens on the mean (p50 {median:,.0f}, p99 {high:,.0f})"
    sharing = sum(bool(request.chunks) for request in drawn)
    yield f"{sharing / len(drawn):.0%} may share prefixes" if sharing else "none shares a prefix"
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


#: Told what is being done, how many parts of the question are done, and how many there are.
Say = Callable[[str, int, int], None]


def silent(text: str, done: int, parts: int) -> None:
    """Say nothing."""


@define
class Watch:
    """Counts runs and tells `say`; keeps rows in `directory`, if there is one.

    A point of the study is a set-up with some number of replicas at one rate, without or with one draw of the model's
    errors.  Points are numbered as they begin, which does not depend on the number of workers.
    """

    parts: int
    directory: StudyDirectory | None = None
    say: Say = silent
    runs: int = 0
    _done: int = -1
    _text: str = ""
    _points: dict[tuple[str, int, float, int | None], int] = field(factory=dict)

    def stage(self, text: str) -> None:
        self._done, self._text = self._done + 1, text
        self._tell()

    def begin(self, setup: SetUp, replicas: int, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._points.setdefault((setup.name, replicas, trial.rate, trial.draw), len(self._points) + 1)

    def end(self, setup: SetUp, replicas: int, plan: Plan, trial: Trial, observation: Observation) -> None:
        self.runs += 1
        self._tell()
        if self.directory is not None:
            point = self._points[setup.name, replicas, trial.rate, trial.draw]
            if (point, trial.replication) not in self.directory.rows:  # a study that goes on has it
                self.directory.add(_row(plan, point, setup, replicas, trial, observation))

    def _tell(self) -> None:
        self.say(f"{self._text} ({self.runs} runs)" if self.runs else self._text, max(0, self._done), self.parts)


def _row(plan: Plan, point: int, setup: SetUp, replicas: int, trial: Trial, seen: Observation) -> Row:
    numbers = {"request_rate": trial.rate, "replicas": replicas, "model_errors": trial.draw is not None}
    return Row(point, trial.replication, replication_seed(plan.seed, trial.replication), setup.settings,
               status=FAILED if seen.hopeless else OK, problem=seen.hopeless, numbers={**numbers, **seen.numbers},
               scenario=runnable(plan, trial).to_toml())


def finished(directory: StudyDirectory | None) -> None:
    """Write the table of the runs so far, however the study has ended."""
    if directory is not None:
        with suppress(OSError):
            directory.finish()


#: The axes of set-ups: values by dotted key, or texts such as "gpu=h100,h200".
Over = Mapping[str, Sequence[Any]] | Sequence[str]


def capacity(scenario: Scenario | str | PathLike[str], slo: Sequence[str | Target] = (), rate: float | None = None,
             over: Over = (), *, requests: int | None = None, replications: int | None = None,
             model_errors: bool = True, seed: int | None = None, jobs: int | None = None, on: str = "processes",
             address: str | None = None, output: str | PathLike[str] | None = None, force: bool = False,
             resume: bool = False, title: str = "", on_progress: Say = silent) -> Capacity:
    """The highest request rate at which *scenario* keeps its latency targets or, with a *rate*, the fewest GPUs for it.

    *slo* are targets such as "ttft:p99:1s"; without any, those of the scenario's `[slo]` count, for 99 % of requests.
    *over* makes a set-up of each combination of some settings, and the best comes first.  A replication has so many
    *requests*, and a rate gets up to so many *replications*.  The study is kept in *output*, and *resume* goes on with
    what is there.  Raises KsimError.
    """
    read = scenario if isinstance(scenario, Scenario) else Scenario.read(Path(scenario))
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError("--rate", f"expected requests/s, more than 0, not {rate!r}")
    plan, notes = planned(read, slo, requests, replications, model_errors, read.seed if seed is None else seed)
    Search.of(read, plan, InProcess())  # what is too short, or has no rate, is told before anything runs
    made = set_ups(read, axes_of(over))
    folder = None if output is None else Path(output)
    _check(folder, resume, force)
    name = title or (Path(read.model).name if isinstance(scenario, Scenario) else Path(scenario).stem)
    command = _command(plan, rate, over)
    with computing.workers(jobs, on, address) as pool, _kept(folder, name, command, read, force, resume) as directory:
        watch = Watch(len(made) + 2, directory, on_progress)
        judge = ByRuns(plan, pool if directory is None else Remembering(pool, directory), watch)
        standings = contest(judge, made, rate, watch.stage)
        notes = (*notes, *_notes(standings), *_long(plan, judge.requests))
        found = Capacity(name, plan, rate, standings, notes, watch.runs, assumptions(read, made, plan))
        if directory is not None:
            finished(directory)
            found.save(directory.path)
            forget(directory)
    return found


def _check(folder: Path | None, resume: bool, force: bool) -> None:
    """Raise ConfigError unless a study can be kept in *folder*, or gone on with."""
    if folder is not None:
        check_unanswered(folder) if resume else check(folder, force)
    elif resume:
        raise ConfigError("--resume", "goes on with a study that is kept; name its directory with -o")


def _command(plan: Plan, rate: float | None, over: Over) -> dict[str, Any]:
    """What tells this question of its scenario from another, for study.json."""
    return {"targets": [*map(str, plan.targets)], "rate": rate, "over": {axis.key: list(axis.values) for axis in
            axes_of(over)}, "requests": plan.count, "replications": plan.replications,
            "model_errors": plan.model_errors, "seed": plan.seed}


def planned(scenario: Scenario, slo: Sequence[str | Target], requests: int | None, replications: int | None,
            model_errors: bool, seed: int) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a question, and what to know of its targets; raises ConfigError where there is none."""
    targets = tuple(target if isinstance(target, Target) else Target.parse(target) for target in slo)
    notes = () if targets else ("the targets are those of the scenario's [slo], for 99 % of requests each",)
    targets = tuple(dict.fromkeys(targets or _of_scenario(scenario)))
    if not targets:
        raise ConfigError("--slo", "name a target, such as ttft:p99:1s, or state [slo] in the scenario")
    given = {} if replications is None else {"replications": replications}
    return Plan(targets, requests, model_errors=model_errors, seed=seed, **given), notes


def _of_scenario(scenario: Scenario) -> Iterator[Target]:
    for metric in ("ttft", "tpot", "e2el"):
        if (limit := getattr(scenario.slo, metric)) is not None:
            yield Target(metric, "p99", limit)


def axes_of(over: Over) -> list[Axis]:
    """The axes that *over* names; raises ConfigError for a range, of which set-ups cannot be made."""
    made = []
    for axis in grid.axes_of(over):
        if isinstance(axis, grid.Range):
            raise ConfigError("--over", f"{axis.key}: set-ups are compared value by value; list them, such as 1,2,4")
        made.append(axis)
    return made


def _long(plan: Plan, requests: int) -> Iterator[str]:
    if requests > plan.count:
        yield (f"replications have up to {requests:,} requests, so that arrivals last {LIVES} times as long as a"
               f" request takes alone")


def _notes(standings: Sequence[Standing]) -> list[str]:
    """What to know of the traffic, once, and of intervals that leave the model's errors out."""
    notes = list(dict.fromkeys(note for one in standings if one.answer for note in one.answer.notes))
    if standings[0].answer and standings[0].answer.model and any(one.answer for one in standings[1:]):
        notes.append(f"the model's errors are part of the interval of {standings[0].setup.name} alone")
    return notes


@contextmanager
def _kept(folder: Path | None, title: str, command: Mapping[str, Any], scenario: Scenario,
          force: bool, resume: bool) -> Iterator[StudyDirectory | None]:
    """The study's directory, if it has a *folder*; its table has what was run, however it ends."""
    if folder is None:
        yield None
        return
    text = scenario.to_toml()
    with (StudyDirectory.open(folder, "capacity", command, text) if resume else
          StudyDirectory.create(folder, "capacity", title, command, text, force)) as directory:
        try:
            yield directory
        except BaseException:
            finished(directory)
            raise
