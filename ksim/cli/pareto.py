"""`ksim pareto`: the settings of a scenario that are best in energy, latency or any other objectives."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import JsonFile, Wide, say, write_json
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.cli.studies import stop
from ksim.cli.terminal import moves
from ksim.foundation import process
from ksim.foundation.errors import ConfigError, KsimError, UnknownName

if TYPE_CHECKING:
    from ksim.study.grid import Axis, Outcome
    from ksim.study.sweep import SweepPlan


Over = Annotated[list[str] | None, typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a key of the scenario and"
                                                " the values to try, such as serve.tensor_parallel_size=1,2,4; may be"
                                                " repeated, for every combination")]
Objectives = Annotated[list[str] | None, typer.Option("--objective", metavar="KEY", help="a number of summary.json that"
                                                      " shall get better; min:KEY and max:KEY say what better is; may"
                                                      " be repeated; by default joules_per_output_token and"
                                                      " median_e2el_ms")]
Required = Annotated[list[str] | None, typer.Option("--require", metavar="KEY<NUMBER", help="a bound (<, <=, > or >=)"
                                                    " on a number of summary.json, such as 'p99_ttft_ms<1000'; points"
                                                    " that miss it do not count; may be repeated")]
MaxRejected = Annotated[float | None, typer.Option("--max-rejected", min=0, max=1, metavar="SHARE", help="share of the"
                                                   " requests that a point may reject and still count; by default"
                                                   " 0.01")]


def pareto(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML), or the directory of a study, whose runs are"
                                                  " compared as they are")],
    over: Over = None, objective: Objectives = None, require: Required = None, max_rejected: MaxRejected = None,
    sample: Annotated[int | None, typer.Option(min=1, help="try only so many combinations, drawn by the seed")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="write points.csv, pareto.png,"
                                                " and the front as scenarios")] = None,
    json_file: JsonFile = None, wide: Wide = False,
    jobs: Annotated[int | None, typer.Option(min=1, show_default="one per CPU", help="number of processes")] = None,
    settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
) -> None:
    """Run a scenario with every combination of some settings, and show those that no other beats."""
    from ksim.cli.pareto_output import claimed
    from ksim.study.grid import Axis
    from ksim.study.pareto import TOLERATED, Requirement, objectives, rank, refusal

    axes = tuple(map(Axis.parse, _given(scenario, over, sample, jobs, settings, pool, seed)))
    wanted, required = objectives(objective or []), [*map(Requirement.parse, require or [])]
    plan = _plan(scenario, axes, sample, settings, seed, pool) if axes else None
    with claimed(output, json_file, force):
        outcomes, stopped = _outcomes(plan, jobs or os.cpu_count() or 1) if plan else (_kept(scenario), None)
        points = rank(outcomes, wanted, required, TOLERATED if max_rejected is None else max_rejected)
        _show_and_write(scenario, points, wanted, required, output, json_file)
    if stopped is not None:
        ran = sum(outcome.summary is not None for outcome in outcomes)
        stop(stopped, f"{ran} of {len(points)} points were run{'; they are written' if output or json_file else ''}")
    if refused := refusal(points):
        raise KsimError(refused)


def _given(scenario: Path, over: list[str] | None, *others: Any) -> list[str]:
    """The texts of ``--over``; a study, whose runs have been run, has no use for them, nor for the *others*."""
    from ksim.study.directory import is_study

    finished = is_study(scenario)
    if finished and any(value is not None for value in (over, *others)):
        raise ConfigError("--over", "is for a scenario; the runs of a study are compared as they are, by --objective,"
                                    " --require and --max-rejected")
    if not finished and not over:
        raise ConfigError("--over", "is missing; name a key of the scenario and the values to try, such as"
                                    " serve.max_num_seqs=8,16")
    return over or []


def _plan(scenario: Path, axes: "Sequence[Axis]", sample: int | None, settings: list[str] | None, seed: int | None,
          pool: list[str] | None) -> "SweepPlan":
    from ksim.scenario.scenario import Scenario
    from ksim.study.grid import RANDOM, Sample
    from ksim.study.sweep import SweepPlan

    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    return SweepPlan(chosen, tuple(axes), Sample(RANDOM, sample) if sample else None)


def _kept(directory: Path) -> "list[Outcome]":
    """How the points of the study in *directory* went: the means of their replications."""
    from ksim.study.sweep import Sweep

    if not (points := Sweep.read(directory).points):
        raise KsimError(f"{directory}: no run has ended yet")
    return [point.outcome for point in points]


def _show_and_write(scenario: Path, points: Sequence[Any], wanted: Sequence[Any], required: Sequence[Any],
                    output: Path | None, json_file: Path | None) -> None:
    from ksim.cli.pareto_output import content, save, show

    show(points, wanted)
    if output is not None:
        save(output, f"Pareto front of {scenario.stem}", points, wanted, required)
        say(f"written to {output}")
    write_json(json_file, content(str(scenario), points, wanted, required))


def _outcomes(plan: "SweepPlan", jobs: int) -> "tuple[list[Outcome], BaseException | None]":
    """Run *plan*; return the outcomes, and the exception that stopped the runs early, if any.

    Points that were not run have that as their problem.  Raises KsimError where nothing can be run, and the exception
    where nothing had been run by then.
    """
    from ksim.study.grid import Outcome
    from ksim.study.sweep import check_names, played
    from ksim.study.workers import workers

    rows, ended = plan.rows, dict[int, Outcome]()
    check_names(plan.scenario, plan.points, (UnknownName,))
    stopped: BaseException | None = None
    try:
        with workers(jobs, most=len(rows)) as pool:
            for row, outcome in _counted(played(plan.scenario, rows, pool), "points", len(rows)):
                ended[row.point] = outcome
    except (KeyboardInterrupt, process.Terminated, KsimError) as error:
        if all(outcome.refused for outcome in ended.values()):
            raise
        stopped = error
    _announce([outcome.problem for _, outcome in sorted(ended.items()) if outcome.refused], len(rows))
    return [ended.get(row.point) or Outcome(row.settings, problem="not run") for row in rows], stopped


def _announce(problems: Sequence[str], points: int) -> None:
    """Say which points cannot be run; raises KsimError where none can."""
    from ksim.study.pareto import first_of

    if len(problems) == points:
        raise KsimError(f"none of {points} points can be run: {first_of(problems)}")
    for reason in dict.fromkeys(problems):
        print(f"ksim: {problems.count(reason)} of {points} points cannot be run: {reason}", file=sys.stderr)


def _counted(items: Iterable[Any], what: str, total: int) -> Iterator[Any]:
    """Yield *items* behind a progress bar, if there is a terminal."""
    from rich.console import Console
    from rich.progress import track

    return iter(track(items, what, total, console=Console(stderr=True), transient=True,
                      disable=not moves(sys.stderr)))
