"""`ksim tune`: the best settings of a scenario, found by running few of all."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.output import JsonFile, Wide, console, say, write_json
from ksim.cli.pools import Pools
from ksim.cli.progress import Progress
from ksim.cli.run import Force, Settings, changed
from ksim.cli.studies import Address, Jobs, On, Resume, stop
from ksim.foundation import process
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.study.tuning.tuner import Tuner
    from ksim.study.tuning.tuning import Tuning

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
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study:"
        " every run is kept there as it ends, beside study.db and best.toml")]


def tune(
    scenario: ScenarioFile, space: SpaceTexts = None, minimize: Minimize = None, maximize: Maximize = None,
    subject_to: SubjectTo = None, trials: Trials = 100, sampler: SamplerName = "tpe", seed: SearchSeed = 0,
    repeat: Repeat = 1, round_size: RoundSize = 8, max_rejected: MaxRejected = 0.01, prune: Prune = True,
    output: Output = None,
    jobs: Jobs = None, on: On = "processes", address: Address = None, resume: Resume = False,
    settings: Settings = None, pool: Pools = None, force: Force = False, json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Find the settings of a scenario that are best in some numbers and keep within bounds on others."""
    from ksim.simulation.scenario import Scenario
    from ksim.study.tuning.plan import TunePlan, objectives, requirements
    from ksim.study.tuning.space import Space
    from ksim.study.tuning.tuner import Tuner, check_tuning

    plan = TunePlan(changed(Scenario.read(scenario), settings, None, pool), Space.parse(space or []),
                    objectives(minimize or [], maximize or []), requirements(subject_to or []), sampler=sampler,
                    seed=seed, repeat=repeat, round=round_size, tolerated=max_rejected, prune=prune)
    check_tuning(plan, trials, output, resume, force, on, address)
    with Tuner.of(plan, f"Tuning of {scenario.stem}", output, resume, force) as tuner:
        _search(tuner, trials, jobs, on, address)
        tuning = tuner.tuning
    _show(tuning)
    write_json(json_file, content(tuning))
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
    from ksim.study.tuning.telling import best_table, remarks

    if (told := best_table(tuning)).rows:
        console().print(told)
    say(*remarks(tuning))
    if tuning.directory is not None:
        best = f"; the best is {tuning.directory.name}/best.toml" if tuning.best else ""
        say(f"written to {tuning.directory.name}{best}")


def content(tuning: "Tuning") -> dict[str, Any]:
    """All trials of *tuning*, for a JSON file."""
    from ksim.cli.studies import as_record

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
    from ksim.study.tuning.telling import refusal

    if refused := refusal(tuning):
        raise KsimError(refused)
