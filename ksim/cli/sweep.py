"""`ksim sweep`: a scenario at many points, each once or several times, into one table.

With `--front`, the points are shown against each other: those that no other beats, in a table, as scenarios and in a
figure.  Without either a directory or `--front`, each is shown against the first, with what makes it slower or faster.
"""

import os
import sys
from contextlib import nullcontext
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import JsonFile, Wide, console, say, write_json
from ksim.cli.keep import Progress
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.cli.studies import Address, Jobs, On, Resume, as_record, stop
from ksim.foundation import process
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.study.pareto import Goals, ParetoPoint
    from ksim.study.sweep import Sweep, SweepPlan, Where


Over = Annotated[list[str] | None, typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a key of the scenario and"
                                                " the values to try, such as serve.tensor_parallel_size=1,2,4, or, for"
                                                " a sample, their range, KEY=LOW:HIGH or KEY=LOW:HIGH:log; may be"
                                                " repeated, for every combination")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study: every"
                                             " run is kept there as it ends, and all of them in runs.parquet; with"
                                             " --front also points.csv, pareto.png, and the front as scenarios")]
SampleText = Annotated[str | None, typer.Option("--sample", metavar="latin:COUNT|random:COUNT", help="try so many"
                                                " points instead of every combination: a Latin hypercube, or drawn one"
                                                " by one, both by the seed")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="replications of each point, each with a seed of its own")]
FrontFlag = Annotated[bool, typer.Option("--front", help="show the points that no other beats in all objectives")]
Objectives = Annotated[list[str] | None, typer.Option("--objective", metavar="KEY", help="with --front: a number of"
                                                      " summary.json that shall get better; min:KEY and max:KEY say"
                                                      " what better is; may be repeated; by default"
                                                      " joules_per_output_token and median_e2el_ms")]
Required = Annotated[list[str] | None, typer.Option("--require", metavar="KEY<NUMBER", help="with --front: a bound (<,"
                                                    " <=, > or >=) on a number of summary.json, such as"
                                                    " 'p99_ttft_ms<1000'; points that miss it do not count; may be"
                                                    " repeated")]
MaxRejected = Annotated[float | None, typer.Option("--max-rejected", min=0, max=1, metavar="SHARE", help="with --front:"
                                                   " share of the requests that a point may reject and still count; by"
                                                   " default 0.01")]


def sweep(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML), or, with --front, the directory of a study,"
                                                  " whose runs are compared as they are")],
    over: Over = None, output: Output = None, sample: SampleText = None, repeat: Repeat = 1,
    front: FrontFlag = False, objective: Objectives = None, require: Required = None, max_rejected: MaxRejected = None,
    jobs: Jobs = None, on: On = "processes", address: Address = None, resume: Resume = False,
    settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Run a scenario at many points and keep all numbers of all runs; show the best, or what makes points differ."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.grid import Sample, parse
    from ksim.study.sweep import SweepPlan, Where, is_study

    goals = _goals(front, objective, require, max_rejected)
    if is_study(scenario):
        if any(value is not None for value in (over, sample, settings, pool, seed)):
            raise ConfigError("--over", "is for a scenario; the runs of a study are compared as they are, by"
                                        " --objective, --require and --max-rejected")
        _front_of_study(scenario, goals, output, json_file, force)
        return
    where, axes = Where(jobs, on, address), tuple(map(parse, _needed(over)))
    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    drawn = Sample.parse(sample) if sample else None
    plan = SweepPlan(chosen, axes, drawn, repeat, phases=output is None and goals is None)
    check_json(json_file)
    if plan.phases:
        _check_few(plan)
    plan.check(output, resume, force)
    _run_and_show(plan, scenario, output, (resume, force), where, goals, json_file)


def pareto(**options: Any) -> None:
    """Run `ksim sweep --front`, which this command is called from now on."""
    print("ksim: `ksim pareto` is called `ksim sweep --front`; the old name goes with the next release",
          file=sys.stderr)
    sample = options["sample"]
    options["sample"] = f"random:{sample}" if sample and sample.isdecimal() else sample
    sweep(**options, front=True)


pareto.__signature__ = Signature([  # type: ignore[attr-defined]
    each for each in signature(sweep).parameters.values() if each.name != "front"])


def _goals(front: bool, objective: list[str] | None, require: list[str] | None, max_rejected: float | None
           ) -> "Goals | None":
    """What the points of a front are compared by; None without one, whose options are refused then."""
    from ksim.study.pareto import TOLERATED, Goals

    if front:
        return Goals.parse(objective or (), require or (), TOLERATED if max_rejected is None else max_rejected)
    for flag, value in (("--objective", objective), ("--require", require), ("--max-rejected", max_rejected)):
        if value is not None:
            raise ConfigError(flag, "says which points are on the front; add --front")
    return None


def _needed(over: list[str] | None) -> list[str]:
    """The texts of ``--over``; raises ConfigError where they are missing."""
    if not over:
        raise ConfigError("--over", "is missing; name a key of the scenario and the values to try, such as"
                                    " serve.max_num_seqs=8,16")
    return over


def _check_few(plan: "SweepPlan") -> None:
    """Raise ConfigError where *plan* has more points than can be shown against the first, or a single one."""
    from ksim.cli.against import MOST

    if not 1 < (points := len(plan.points)) <= MOST:
        raise ConfigError("-o", f"is missing; name the directory of the study, or add --front to see only which points"
                                f" no other beats: 2 to {MOST} points are shown against the first, not {points}")


def _run_and_show(plan: "SweepPlan", scenario: Path, output: Path | None, kept: tuple[bool, bool], where: "Where",
                  goals: "Goals | None", json_file: Path | None) -> None:
    """Run *plan* behind a progress bar, and show what came out; the front also where something stops it."""
    from ksim.study.sweep import Sweep

    title, total = f"Sweep of {scenario.stem}", len(plan.rows)
    with plan.kept(output, title, *kept) as study:
        try:
            with Progress(total - len(study.rows), quiet=False, what="runs", every=1) as progress:
                plan.carry_out(study, where, progress.advance)
        except (KeyboardInterrupt, process.Terminated, KsimError) as reason:
            if output is None and not study.rows:
                raise
            if goals is not None and study.rows:
                _show_front(Sweep.of(title, study), scenario, goals, output, json_file)
            stop(reason, f"{len(study.rows):,} of {total:,} runs "
                         + ("are kept; --resume goes on with the others" if output else "had ended"))
        swept = Sweep.of(title, study)
    if plan.phases:
        _show_against(swept, json_file)
    elif goals is None:
        assert output is not None, "a sweep without a front has a directory"
        _show_sweep(swept, output, json_file)
    else:
        _check_front(_show_front(swept, scenario, goals, output, json_file))


def _show_sweep(swept: "Sweep", output: Path, json_file: Path | None) -> None:
    """Print the best points of *swept*, and what failed; raises KsimError where every run has."""
    from ksim.study.rows import OK, best, remarks

    write_json(json_file, {"title": swept.title, "directory": str(swept.directory), "runs": len(swept.rows),
                           "points": [as_record(point) for point in swept.points]})
    if (table := best(swept.points)).rows:
        console().print(table)
    say(next(remarks(swept.rows)))
    _tell_failures(swept)
    say(f"written to {output / 'runs.parquet'}; `ksim sweep {output} --front` shows what no other point beats")
    if all(row.status != OK for row in swept.rows):
        raise KsimError(f"none of {len(swept.rows):,} runs went well")


def _show_against(swept: "Sweep", json_file: Path | None) -> None:
    """Print the points of *swept* against the first that ran; raises KsimError where fewer than two did."""
    from ksim.cli.against import show

    _tell_failures(swept)
    if sum(point.outcome.summary is not None for point in swept.points) < 2:
        raise KsimError(f"fewer than two of {len(swept.points)} points ran, so there is nothing to compare")
    told = show(swept.points)
    write_json(json_file, {"title": swept.title, "points": [as_record(point) for point in swept.points], **told})


def _tell_failures(swept: "Sweep") -> None:
    """Say on standard error which runs failed, and how many were not run."""
    from ksim.study.rows import remarks

    _, *failures = remarks(swept.rows)
    for line in failures:
        print(f"ksim: {line}", file=sys.stderr)


def _front_of_study(directory: Path, goals: "Goals | None", output: Path | None, json_file: Path | None, force: bool
                    ) -> None:
    """Show the front of the study in *directory*, and write it to *output*; nothing is run."""
    from ksim.cli.front import claimed
    from ksim.study.sweep import Sweep

    if goals is None:
        raise ConfigError(str(directory), "is a study; --front shows the best of its points, and `ksim report` makes a"
                                          " page of it")
    check_json(json_file)
    swept = Sweep.read(directory)
    if not swept.points:
        raise KsimError(f"{directory}: no run has ended yet")
    with nullcontext() if output is None else claimed(output, force):
        points = _show_front(swept, directory, goals, output, json_file)
    _check_front(points)


def check_json(json_file: Path | None) -> None:
    """Raise ConfigError unless *json_file* can be written, so that nobody learns it after the runs."""
    if json_file is not None and (json_file.is_dir() or not os.access(json_file.resolve().parent, os.W_OK)):
        raise ConfigError(str(json_file), "cannot be written: name a file in a directory that may be written to")


def _show_front(swept: "Sweep", scenario: Path, goals: "Goals", output: Path | None, json_file: Path | None
                ) -> "list[ParetoPoint]":
    """Print the front of *swept* and write it, into the directory of its study or one of its own."""
    from ksim.cli.front import content, folder_of, save, show
    from ksim.study.pareto import first_of

    points = goals.rank([point.outcome for point in swept.points])
    if all(point.outcome.summary is None for point in points):
        raise KsimError(f"none of {len(points)} points can be run: {first_of([point.problem for point in points])}")
    show(points, goals)
    _tell_failures(swept)
    if output is not None:
        with folder_of(output.resolve(), swept.directory) as folder:
            save(folder, f"Pareto front of {scenario.stem}", points, goals)
        say(f"written to {output}")
    write_json(json_file, content(str(scenario), points, goals))
    return points


def _check_front(points: "list[ParetoPoint]") -> None:
    """Raise KsimError where no point is on the front."""
    from ksim.study.pareto import refusal

    if refused := refusal(points):
        raise KsimError(refused)
