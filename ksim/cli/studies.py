"""The commands that run studies: `ksim tune`, `routers` and `autoscalers`, and what they share with others.

They share options, and what they say where something stops them.
"""

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ksim.cli.flags import JsonFile, Wide, console, say, write_json
from ksim.cli.keep import Progress
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.foundation import process
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.foundation.config import Choice
    from ksim.study.autoscalers import AutoscalerComparison
    from ksim.study.routers import RouterComparison, RoutersPlan
    from ksim.study.rows import SweepPoint
    from ksim.study.sweep import Where
    from ksim.study.tuning.tune import Tuner, Tuning


Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, show_default="one per CPU", help="number of processes,"
                                          " or of CPUs that Ray uses")]
On = Annotated[str, typer.Option("--on", metavar="processes|ray", help="where the runs are computed: in processes of"
                                 " this machine, or by Ray, on this machine or a cluster")]
Address = Annotated[str | None, typer.Option("--address", metavar="ADDRESS", help="the Ray cluster to use, such as"
                                             " auto or ray://head:10001; by default Ray is started on this machine")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the study that is in the output directory")]


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
    from ksim.study.sweep import Where
    from ksim.study.tuning.tune import Space, TunePlan, Tuner, check_tuning, goals

    plan = TunePlan(changed(Scenario.read(scenario), settings, None, pool), Space.parse(space or []),
                    goals(minimize or [], maximize or [], subject_to or [], max_rejected), sampler=sampler,
                    search_seed=seed, repeat=repeat, round=round_size, prune=prune)
    where, title = Where(jobs, on, address), f"Tuning of {scenario.stem}"
    check_tuning(plan, trials, output, resume, force)
    with plan.kept(output, title, resume, force) as study:
        tuner = Tuner(plan, title, study)
        _search(tuner, trials, where, kept=output is not None)
        tuning = tuner.tuning
    _show(tuning)
    write_json(json_file, tune_content(tuning))
    _refuse(tuning)


def _search(tuner: "Tuner", trials: int, where: "Where", kept: bool) -> None:
    """Search behind a progress bar; where something stops the search, show what came out of it so far."""
    ended, total = tuner.study.rows, trials * tuner.plan.repeat
    try:
        with Progress(max(0, total - len(ended)), quiet=False, what="runs", every=1) as progress:
            tuner.search(trials, where, progress.advance)
    except (KeyboardInterrupt, process.Terminated, KsimError) as reason:
        if ended:
            _show(tuner.tuning)
        stop(reason, f"{len(ended):,} of {total:,} runs were done"
                     f"{'; they are kept, and --resume goes on' if kept else ''}")


def _show(tuning: "Tuning") -> None:
    """Print the best trials, how the others ended, and where all of them are."""
    from ksim.study.tuning.tune import best_table, remarks

    if (table := best_table(tuning)).rows:
        console().print(table)
    say(*remarks(tuning))
    if tuning.directory is not None:
        best = f"; the best is {tuning.directory.name}/best.toml" if tuning.best else ""
        say(f"written to {tuning.directory.name}{best}")


def tune_content(tuning: "Tuning") -> dict[str, Any]:
    """All trials of *tuning*, for a JSON file."""
    ranked = {id(point.outcome): point for point in tuning.ranked}
    best = tuning.best and tuning.trial(tuning.best).number
    trials = [{**as_record(trial), "problem": ranked[id(trial.outcome)].problem or None,
               "on_front": ranked[id(trial.outcome)].on_front} for trial in tuning.points]
    return {"title": tuning.title, "directory": tuning.directory and str(tuning.directory),
            "objectives": [str(goal) for goal in tuning.goals.objectives],
            "requirements": [str(bound) for bound in tuning.goals.required], "counts": tuning.counts, "best": best,
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
    from ksim.study.routers import RoutersPlan, ages, listed
    from ksim.study.sweep import Where

    where = Where(jobs, on, address)
    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    plan = RoutersPlan.of(chosen, listed(names) if names is not None else (),
                          ages(staleness) if staleness is not None else (), seeds)
    plan.check(output, resume, force)
    found = _compared(plan, f"Routers compared: {scenario.stem}", output, (resume, force), where)
    _show_routers(found)
    if output is not None:
        _write(found, output)
    write_json(json_file, {"title": found.title, "command": plan.command, "routers": found.records()})
    if not found.ranking:
        raise KsimError(f"none of {len(found.rows):,} runs went well")


def _compared(plan: "RoutersPlan", title: str, output: Path | None, kept: tuple[bool, bool], where: "Where"
              ) -> "RouterComparison":
    """Run *plan* behind a progress bar; an interrupt or a killed process says how to go on."""
    from ksim.study.routers import RouterComparison

    try:
        with (plan.kept(output, title, *kept) as study,
              Progress(len(plan.rows), quiet=False, what="runs", every=1) as progress):
            plan.carry_out(study, where, progress.advance)
            return RouterComparison.of(title, study)
    except (KeyboardInterrupt, process.Terminated) as reason:
        ended = f"; those of {output} that had ended are kept, and --resume goes on with the others" if output else ""
        stop(reason, f"not all of {len(plan.rows):,} runs had ended{ended}")


def _show_routers(found: "RouterComparison") -> None:
    """Print the table, how many runs there were, what may surprise in it, and which routers did not run."""
    if found.ranking:
        console().print(found.shown)
    count, *left = found.notes
    say(count, *(f"* {text}" for text in found.explanations))
    for note in left:
        print(f"ksim: {note}", file=sys.stderr)


def _write_csv(path: Path, records: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for record in records for key in record)),
                                lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def _write(found: "RouterComparison", output: Path) -> None:
    """Write all numbers and the figure beside the runs."""
    _write_csv(output / "routers.csv", found.records())
    if found.ranking:
        found.plot().save(output / "routers.png")
    say(f"written to {output}; `ksim report {output}` makes a page of it")


Autoscalers = Annotated[str | None, typer.Option("--autoscalers", metavar="NAME,NAME", show_default="the scenario's"
                        " alone", help="autoscalers to compare with the scenario's own, such as wva,hpa.yaml or"
                        " package.module:Class; each scales the pools that the scenario's does. A path is that of a"
                        " manifest with a HorizontalPodAutoscaler or a ScaledObject")]
AutoscalerSettings = Annotated[list[str] | None, typer.Option("--over", metavar="NAME.KEY=VALUE,VALUE", help="an option"
                               " of an autoscaler and the values to try, such as wva.scaleUpThreshold=0.7,0.8; may be"
                               " repeated, for every combination")]
Attainment = Annotated[float, typer.Option("--attainment", metavar="SHARE", help="share of the requests that have to be"
                                           " within slo")]
Slots = Annotated[int, typer.Option("--slots", min=1, help="parts of the load in each of which the perfect autoscaler"
                                    " may have another size")]
Lowerings = Annotated[int, typer.Option("--trials", min=0, help="runs at most in which sizes of the perfect one are"
                                        " lowered, once some are found")]
AutoscalersOutput = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="where"
                              " autoscalers.csv, autoscalers.png and perfect.toml are written, and with --over"
                              " best.toml")]


def autoscalers(
    scenario: ScenarioFile, names: Autoscalers = None, over: AutoscalerSettings = None, attainment: Attainment = 0.99,
    slots: Slots = 48, trials: Lowerings = 48, output: AutoscalersOutput = None, json_file: JsonFile = None,
    wide: Wide = False, jobs: Jobs = None, settings: Settings = None, pool: Pools = None, seed: Seed = None,
    force: Force = False,
) -> None:
    """Compare autoscalers under the same requests: what each costs beside the perfect one, and the SLO it keeps."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.autoscalers import AutoscalersPlan
    from ksim.study.grid import parse
    from ksim.study.routers import listed
    from ksim.study.workers import Where
    from ksim.views.run_directory import claimed

    chosen = [_autoscaler(text) for text in listed(names, "--autoscalers")] if names is not None else []
    plan = AutoscalersPlan(changed(Scenario.read(scenario), settings, seed, pool), chosen, attainment, slots, trials,
                           [*map(parse, over or ())])
    with nullcontext() if output is None else claimed(output, _AUTOSCALERS_MARKS, force):
        with Progress(plan.most_runs, quiet=False, what="runs", every=1) as progress:
            found = plan.compare(f"Autoscalers compared: {scenario.stem}", Where(jobs), progress.advance)
        console().print(found.shown)
        say(*found.notes)
        if output is not None:
            _write_autoscalers(found, output)
    write_json(json_file, {"title": found.title, "attainment": attainment, "autoscalers": found.records()})


def _autoscaler(text: str) -> "Choice":
    """The autoscaler that *text* names, or that a manifest is, of which it is the path."""
    from ksim.study.routers import parsed

    if not text.endswith((".yaml", ".yml")):
        return parsed(text)
    from ksim.deploy.manifests.autoscalers import alone_in
    from ksim.deploy.texts import Pasted

    return alone_in(Pasted.of_file(Path(text)))


#: The files by which an earlier comparison is known.
_AUTOSCALERS_MARKS = ("autoscalers.csv", "perfect.toml")


def _write_autoscalers(found: "AutoscalerComparison", output: Path) -> None:
    """Write the numbers, the figure, and the scenarios of the perfect autoscaler and of the best settings."""
    from ksim.views.run_directory import replacing

    with replacing(output, _AUTOSCALERS_MARKS) as new:
        _write_csv(new / "autoscalers.csv", [
            {key: value for key, value in (record | record.get("settings", {})).items()
             if key not in ("sizes", "settings")} for record in found.records()])
        found.plot().save(new / "autoscalers.png")
        (new / "perfect.toml").write_text(found.perfect.scenario.to_toml(), encoding="utf-8")
        if found.varied and found.best is not None:
            (new / "best.toml").write_text(found.best.scenario.to_toml(), encoding="utf-8")
    best = f", and {output / 'best.toml'} the best settings" if found.varied and found.best is not None else ""
    say(f"written to {output}; `ksim run {output / 'perfect.toml'}` shows the perfect one{best}")
