"""`ksim sweep`: a scenario at many points, each once or several times, into one table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.output import JsonFile, Wide, console, say, write_json
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.cli.studies import Address, Jobs, On, Resume, StudyFolder, keep_going
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.study.sweep_result import Sweep


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
    from ksim.simulation.scenario import Scenario
    from ksim.study.axes import parse
    from ksim.study.running import check_names
    from ksim.study.samples import Sample
    from ksim.study.sweep import SweepPlan
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
    from ksim.study.best import best, remarks
    from ksim.study.rows import OK
    from ksim.study.sweep_result import Sweep

    study = Sweep.read(directory)
    write_json(json_file, content(study))
    if (found := best(study.points)).rows:
        console().print(found)
    count, *failures = remarks(study.rows)
    say(count)
    for line in failures:
        print(f"ksim: {line}", file=sys.stderr)
    say(f"written to {directory / 'runs.parquet'}; `ksim pareto {directory}` shows what no other point beats")
    if all(row.status != OK for row in study.rows):
        raise KsimError(f"none of {len(study.rows):,} runs went well")


def content(study: "Sweep") -> dict[str, Any]:
    """All points of *study*, for a JSON file: settings, and the means of all numbers of their runs."""
    from ksim.cli.studies import as_record

    return {"title": study.title, "directory": str(study.directory), "runs": len(study.rows),
            "points": [as_record(point) for point in study.points]}
