"""What the commands that run studies have in common: options, a progress bar, and how they stop.

`ksim sweep`: a scenario at many points, each once or several times, into one table.

`ksim tune`: the best settings of a scenario, found by running few of all.

`ksim routers`: all routers on one trace, under the same requests.
"""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ksim.cli.flags import JsonFile, Wide, console, say, write_json
from ksim.cli.keep import Progress
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.foundation import process
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.scenario.scenario import Scenario
    from ksim.study.directory import StudyDirectory
    from ksim.study.routers.compare import RouterComparison
    from ksim.study.routers.plan import RoutersPlan
    from ksim.study.rows import Row, SweepPoint
    from ksim.study.sweep import Sweep
    from ksim.study.tuning.tune import Tuner, Tuning


StudyFolder = Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study: every run"
                                           " is kept there as it ends, and all of them in runs.parquet")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, show_default="one per CPU", help="number of processes,"
                                          " or of CPUs that Ray uses")]
On = Annotated[str, typer.Option("--on", metavar="processes|ray", help="where the runs are computed: in processes of"
                                 " this machine, or by Ray, on this machine or a cluster")]
Address = Annotated[str | None, typer.Option("--address", metavar="ADDRESS", help="the Ray cluster to use, such as"
                                             " auto or ray://head:10001; by default Ray is started on this machine")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the study that is in the output directory")]


def keep_going(study: "StudyDirectory", scenario: "Scenario", rows: "list[Row]", jobs: int | None, on: str,
               address: str | None) -> None:
    """Run what *study* lacks of *rows*, behind a progress bar; an interrupt or a killed process says how to go on."""
    from ksim.study.sweep import run_into

    try:
        with Progress(len(study.without(rows)), quiet=False, what="runs", every=1) as progress:
            run_into(study, scenario, rows, progress.advance, jobs, on, address)
    except (KeyboardInterrupt, process.Terminated, KsimError) as reason:
        done = len(rows) - len(study.without(rows))
        stop(reason, f"{done:,} of {len(rows):,} runs are kept; --resume goes on with the others")


def as_record(point: "SweepPoint") -> dict[str, Any]:
    """*point* for a JSON file: settings, means, and half widths of their 95 % intervals where there are several runs.
    """
    from ksim.study.grid import value_text

    numbers = dict(point.outcome.summary or {})
    known = [key for key, value in numbers.items() if value is not None and not isinstance(value, bool)]
    settings = {key: value if isinstance(value, int | float | str) else value_text(value)
                for key, value in point.settings.items()}
    return {"point": point.number, "settings": settings, "replications": len(point.rows),
            "problem": point.outcome.problem or None, "summary": numbers or None,
            "half_widths": {key: point.half_width(key) for key in known} if len(point.rows) > 1 else None}


def stop(reason: BaseException, kept: str) -> NoReturn:
    """Raise *reason* again: a KsimError, or what a signal has raised; the message says what is *kept*."""
    if isinstance(reason, KsimError):
        raise KsimError(f"{reason}; {kept}") from reason
    if isinstance(reason, process.Terminated):
        raise process.Terminated(reason.code, f"terminated; {kept}") from reason
    raise process.Terminated(130, f"interrupted; {kept}") from reason


def sweep(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    over: Annotated[list[str], typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a key of the scenario and the"
                                            " values to try, such as serve.tensor_parallel_size=1,2,4, or, for a"
                                            " sample, their range, KEY=LOW:HIGH or KEY=LOW:HIGH:log; may be repeated,"
                                            " for every combination")],
    output: StudyFolder,
    sample: Annotated[str | None, typer.Option("--sample", metavar="latin:COUNT|random:COUNT", help="try so many points"
                                               " instead of every combination: a Latin hypercube, or drawn one by one,"
                                               " both by the seed")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="replications of each point, each with a seed of its"
                                        " own")] = 1,
    jobs: Jobs = None, on: On = "processes", address: Address = None, resume: Resume = False,
    settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Run a scenario at many points and keep all numbers of all runs, also where it is interrupted."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.grid import Sample, parse
    from ksim.study.sweep import SweepPlan, check_names
    from ksim.study.workers import check

    check(on, address)
    axes = tuple(map(parse, over))
    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    plan = SweepPlan(chosen, axes, Sample.parse(sample) if sample else None, repeat)
    rows = plan.rows
    plan.check(output, resume, force)
    check_names(chosen, plan.points)
    with plan.study(output, f"Sweep of {scenario.stem}", resume, force) as study:
        keep_going(study, plan.scenario, rows, jobs, on, address)
    show(output, json_file)


def show(directory: Path, json_file: Path | None = None) -> None:
    """Print the best points of the study in *directory*, and what failed; raises KsimError where every run has."""
    from ksim.study.rows import OK, best, remarks
    from ksim.study.sweep import Sweep

    study = Sweep.read(directory)
    write_json(json_file, sweep_content(study))
    if (found := best(study.points)).rows:
        console().print(found)
    count, *failures = remarks(study.rows)
    say(count)
    for line in failures:
        print(f"ksim: {line}", file=sys.stderr)
    say(f"written to {directory / 'runs.parquet'}; `ksim pareto {directory}` shows what no other point beats")
    if all(row.status != OK for row in study.rows):
        raise KsimError(f"none of {len(study.rows):,} runs went well")


def sweep_content(study: "Sweep") -> dict[str, Any]:
    """All points of *study*, for a JSON file: settings, and the means of all numbers of their runs."""

    return {"title": study.title, "directory": str(study.directory), "runs": len(study.rows),
            "points": [as_record(point) for point in study.points]}


ScenarioFile = Annotated[Path, typer.Argument(help="scenario file (TOML)")]
SpaceTexts = Annotated[list[str] | None, typer.Option("--space", metavar="KEY=VALUE,VALUE|KEY=LOW:HIGH[:log]", help="a"
        " key of the scenario and the values to choose from, or their range; may be repeated")]
Minimize = Annotated[list[str] | None, typer.Option("--minimize", metavar="KEY", help="a number of a run to"
        " minimise, such as usd_per_million_tokens; may be repeated")]
Maximize = Annotated[list[str] | None, typer.Option("--maximize", metavar="KEY", help="a number of a run to"
        " maximise; may be repeated")]
SubjectTo = Annotated[list[str] | None, typer.Option("--subject-to", metavar="KEY<NUMBER", help="a bound (<, <=, >"
        " or >=) that a trial has to meet to count, such as 'p99_ttft_ms<1000'; may be repeated")]
Trials = Annotated[int, typer.Option("--trials", min=1, help="how many points are tried at most")]
SamplerName = Annotated[str, typer.Option("--sampler", metavar="tpe|gp|nsga2|random", help="what proposes points;"
        " gp needs PyTorch")]
SearchSeed = Annotated[int, typer.Option("--seed", min=0, help="seed of the search; --set seed=N is that of the"
        " requests")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="replications of each trial, whose means count")]
RoundSize = Annotated[int, typer.Option("--round", min=1, help="trials that are proposed together, before any of"
        " them is known")]
MaxRejected = Annotated[float, typer.Option("--max-rejected", min=0, max=1, metavar="SHARE", help="share of the"
        " requests that a trial may reject and still count")]
Prune = Annotated[bool, typer.Option("--prune/--no-prune", help="stop runs that are certain to miss a bound, or run"
        " them to their end")]
TuneOutput = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study:"
        " every run is kept there as it ends, beside study.db and best.toml")]


def tune(
    scenario: ScenarioFile, space: SpaceTexts = None, minimize: Minimize = None, maximize: Maximize = None,
    subject_to: SubjectTo = None, trials: Trials = 100, sampler: SamplerName = "tpe", seed: SearchSeed = 0,
    repeat: Repeat = 1, round_size: RoundSize = 8, max_rejected: MaxRejected = 0.01, prune: Prune = True,
    output: TuneOutput = None,
    jobs: Jobs = None, on: On = "processes", address: Address = None, resume: Resume = False,
    settings: Settings = None, pool: Pools = None, force: Force = False, json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Find the settings of a scenario that are best in some numbers and keep within bounds on others."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.tuning.space import Space, TunePlan, objectives, requirements
    from ksim.study.tuning.tune import Tuner, check_tuning

    plan = TunePlan(changed(Scenario.read(scenario), settings, None, pool), Space.parse(space or []),
                    objectives(minimize or [], maximize or []), requirements(subject_to or []), sampler=sampler,
                    seed=seed, repeat=repeat, round=round_size, tolerated=max_rejected, prune=prune)
    check_tuning(plan, trials, output, resume, force, on, address)
    with Tuner.of(plan, f"Tuning of {scenario.stem}", output, resume, force) as tuner:
        _search(tuner, trials, jobs, on, address)
        tuning = tuner.tuning
    _show(tuning)
    write_json(json_file, tune_content(tuning))
    _refuse(tuning)


def _search(tuner: "Tuner", trials: int, jobs: int | None, on: str, address: str | None) -> None:
    """Search behind a progress bar; where something stops the search, show what came out of it so far."""
    left = trials * tuner.plan.repeat - len(tuner.rows)
    try:
        with Progress(max(0, left), quiet=False, what="runs", every=1) as progress:
            tuner.search(trials, progress.advance, jobs, on, address)
    except (KeyboardInterrupt, process.Terminated, KsimError) as reason:
        if tuner.rows:
            _show(tuner.tuning)
        kept = "; they are kept, and --resume goes on" if tuner.study else ""
        stop(reason, f"{len(tuner.rows):,} of {trials * tuner.plan.repeat:,} runs were done{kept}")


def _show(tuning: "Tuning") -> None:
    """Print the best trials, how the others ended, and where all of them are."""
    from ksim.study.tuning.tune import best_table, remarks

    if (told := best_table(tuning)).rows:
        console().print(told)
    say(*remarks(tuning))
    if tuning.directory is not None:
        best = f"; the best is {tuning.directory.name}/best.toml" if tuning.best else ""
        say(f"written to {tuning.directory.name}{best}")


def tune_content(tuning: "Tuning") -> dict[str, Any]:
    """All trials of *tuning*, for a JSON file."""

    places = {id(point.outcome): point for point in tuning.ranked}
    best = tuning.best and tuning.trial(tuning.best).number
    trials = [{**as_record(trial), "problem": places[id(trial.outcome)].problem or None,
               "on_front": places[id(trial.outcome)].on_front} for trial in tuning.points]
    return {"title": tuning.title, "directory": tuning.directory and str(tuning.directory),
            "objectives": [str(goal) for goal in tuning.wanted],
            "requirements": [str(bound) for bound in tuning.required], "counts": tuning.counts, "best": best,
            "trials": trials}


def _refuse(tuning: "Tuning") -> None:
    """Raise KsimError where no trial counts."""
    from ksim.study.tuning.tune import refusal

    if refused := refusal(tuning):
        raise KsimError(refused)


Routers = Annotated[str | None, typer.Option("--routers", metavar="NAME,NAME", show_default="all", help="the routers to"
                                             " compare, such as round_robin,prefix_aware:load_tokens=64 or"
                                             " package.module:Class; of a fleet that splits requests, pair routers")]
Staleness = Annotated[str | None, typer.Option("--staleness", metavar="TIME,TIME", show_default="that of the scenario",
                                               help="ages of what routers see, such as 0,50ms,200ms: metrics are"
                                               " scraped as often, and they and KV events arrive as late")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="runs of each router, each with a seed of its own")]
RoutersOutput = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FOLDER",
    help="directory of the study: every run is kept there as it ends, beside routers.csv and routers.png")]


def routers(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    names: Routers = None, staleness: Staleness = None, seeds: Seeds = 1, output: RoutersOutput = None,
    json_file: JsonFile = None, wide: Wide = False, jobs: Jobs = None, on: On = "processes", address: Address = None,
    resume: Resume = False, settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
) -> None:
    """Compare routers under the same requests: how long users wait, what caches hold, and regret."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.routers.plan import RoutersPlan, ages, listed
    from ksim.study.sweep import check_names
    from ksim.study.workers import check

    check(on, address)
    if resume and output is None:
        raise ConfigError("--resume", "goes on with a study that is kept; name its directory with -o")
    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    plan = RoutersPlan.of(chosen, listed(names) if names is not None else (),
                          ages(staleness) if staleness is not None else (), seeds)
    if output is not None:
        plan.check(output, resume, force)
    check_names(chosen, plan.points)
    found = _compared(plan, f"Routers compared: {scenario.stem}", output, resume, force, jobs=jobs, on=on,
                      address=address)
    _show_routers(found)
    if output is not None:
        _write(found, output)
    write_json(json_file, {"title": found.title, "command": plan.command, "routers": found.records()})
    if not found.ranking:
        raise KsimError(f"none of {len(found.rows):,} runs went well")


def _compared(plan: "RoutersPlan", title: str, output: Path | None, resume: bool, force: bool, **where: Any
              ) -> "RouterComparison":
    """Run *plan* behind a progress bar; an interrupt or a killed process says how to go on."""
    from ksim.study.routers.compare import compare

    kept = f"; those of {output} that had ended are kept, and --resume goes on with the others" if output else ""
    try:
        with Progress(len(plan.rows), quiet=False, what="runs", every=1) as progress:
            return compare(plan, title, output, resume, force, progress.advance, **where)
    except (KeyboardInterrupt, process.Terminated) as reason:
        stop(reason, f"not all of {len(plan.rows):,} runs had ended{kept}")


def _show_routers(found: "RouterComparison") -> None:
    """Print the table, how many runs there were, what may surprise in it, and which routers did not run."""
    if found.ranking:
        console().print(found.shown)
    count, *left = found.notes
    say(count, *(f"* {text}" for text in found.explanations))
    for note in left:
        print(f"ksim: {note}", file=sys.stderr)


def _write(found: "RouterComparison", output: Path) -> None:
    """Write all numbers and the figure beside the runs."""
    records = found.records()
    with (output / "routers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for record in records for key in record)),
                                lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    if found.ranking:
        found.plot().save(output / "routers.png")
    say(f"written to {output}; `ksim report {output}` makes a page of it")
