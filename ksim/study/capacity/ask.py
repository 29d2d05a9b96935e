"""`ksim.capacity`: ask how much load set-ups carry within latency targets, or how many GPUs a rate needs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.study import axes
from ksim.study import workers as computing
from ksim.study.capacity.answer import Standing
from ksim.study.capacity.assumptions import assumptions
from ksim.study.capacity.contest import contest
from ksim.study.capacity.judge import LIVES, ByRuns
from ksim.study.capacity.remembered import Remembering, check_unanswered, forget
from ksim.study.capacity.result import Capacity
from ksim.study.capacity.search import Search
from ksim.study.capacity.setups import set_ups
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Plan
from ksim.study.capacity.watching import Say, Watch, finished, silent
from ksim.study.directory import StudyDirectory, check
from ksim.study.grid import Axis
from ksim.study.workers import InProcess

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
    for axis in axes.axes_of(over):
        if isinstance(axis, axes.Range):
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
