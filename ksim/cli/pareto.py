"""`ksim pareto`: the settings of a scenario that are best in energy, latency or any other objectives."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ksim.cli.output import write_json
from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.foundation import process
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.simulation.scenario import Scenario
    from ksim.study.grid import Outcome


def pareto(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    over: Annotated[list[str], typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a key of the scenario and the"
                                            " values to try, such as serve.tensor_parallel_size=1,2,4; may be repeated,"
                                            " for every combination")],
    objective: Annotated[list[str] | None, typer.Option("--objective", metavar="KEY", help="a number of summary.json to"
                                                        " minimise, or max:KEY to maximise; may be repeated; by default"
                                                        " joules_per_output_token and median_e2el_ms")] = None,
    require: Annotated[list[str] | None, typer.Option("--require", metavar="KEY<NUMBER", help="a bound (<, <=, > or"
                                                      " >=) on a number of summary.json, such as 'p99_ttft_ms<1000';"
                                                      " points that miss it do not count; may be repeated")] = None,
    max_rejected: Annotated[float | None, typer.Option("--max-rejected", min=0, max=1, metavar="SHARE", help="share of"
                                                       " the requests that a point may reject and still count; by"
                                                       " default 0.01")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="try only so many combinations, drawn by the seed")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="write points.csv, pareto.png,"
                                                " and the front as scenarios")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write all points to this file,"
                                                   " with all of their numbers")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, show_default="one per CPU", help="number of processes")] = None,
    settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
) -> None:
    """Run a scenario with every combination of some settings, and show those that no other beats."""
    from ksim.cli.pareto_output import check
    from ksim.simulation.scenario import Scenario
    from ksim.study.grid import Axis, combinations
    from ksim.study.objectives import Requirement
    from ksim.study.pareto import TOLERATED, objectives, rank, refusal

    wanted, axes = objectives(objective or []), [Axis.parse(text) for text in over]
    required = [*map(Requirement.parse, require or [])]
    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    check(output, json_file, force)
    outcomes, stopped = _outcomes(chosen, combinations(axes, sample, chosen.seed), jobs or os.cpu_count() or 1)
    points = rank(outcomes, wanted, required, TOLERATED if max_rejected is None else max_rejected)
    _show_and_write(scenario, points, wanted, required, output, json_file)
    if stopped is not None:
        _stop(stopped, outcomes, written=bool(output or json_file))
    if refused := refusal(points):
        raise KsimError(refused)


def _show_and_write(scenario: Path, points: Sequence[Any], wanted: Sequence[Any], required: Sequence[Any],
                    output: Path | None, json_file: Path | None) -> None:
    from ksim.cli.pareto_output import content, save, show

    show(points, wanted)
    if output is not None:
        save(output, f"Pareto front of {scenario.stem}", points, wanted, required)
        print(f"written to {output}")
    write_json(json_file, content(str(scenario), points, wanted, required))


def _outcomes(scenario: "Scenario", combined: Sequence[Any], jobs: int) -> "tuple[list[Outcome], BaseException | None]":
    """Run what can be run; return the outcomes, and the exception that stopped the runs early, if any.

    Points that were not run have that as their problem.  Raises KsimError where nothing can be run, and the exception
    where nothing had been run by then.
    """
    from ksim.study.grid import Outcome, outcomes, unbuildable

    known = list(_counted(unbuildable(scenario, combined), "points checked", len(combined)))
    _announce([outcome.problem for outcome in known if outcome is not None], len(known))
    todo = [place for place, outcome in enumerate(known) if outcome is None]
    stopped: BaseException | None = None
    try:
        with closing(outcomes(scenario, [combined[place] for place in todo], jobs)) as running:
            for place, outcome in zip(todo, _counted(running, "points", len(todo)), strict=True):
                known[place] = outcome
    except (KeyboardInterrupt, process.Terminated, KsimError) as error:
        if known[todo[0]] is None:
            raise
        stopped = error
    return [outcome or Outcome(settings, problem="not run")
            for settings, outcome in zip(combined, known, strict=True)], stopped


def _announce(problems: Sequence[str], points: int) -> None:
    """Say which points cannot be run, before the others run; raises KsimError where none can."""
    from ksim.study.pareto import first_of

    if len(problems) == points:
        raise KsimError(f"none of {points} points can be run: {first_of(problems)}")
    for reason in dict.fromkeys(problems):
        print(f"ksim: {problems.count(reason)} of {points} points cannot be run: {reason}", file=sys.stderr)


def _counted(items: "Iterable[Outcome | None]", what: str, total: int) -> "Iterator[Any]":
    """Yield *items* behind a progress bar, if there is a terminal."""
    from rich.console import Console
    from rich.progress import track

    return iter(track(items, what, total, console=Console(stderr=True), transient=True,
                      disable=not sys.stderr.isatty()))


def _stop(reason: BaseException, outcomes: "Sequence[Outcome]", written: bool) -> NoReturn:
    """Raise *reason* again, with a message that says how many points were run, and whether they are *written*."""
    ran = sum(outcome.summary is not None for outcome in outcomes)
    kept = f"{ran} of {len(outcomes)} points were run{'; they are written' if written else ''}"
    if isinstance(reason, KsimError):
        raise KsimError(f"{reason}; {kept}") from reason
    if isinstance(reason, process.Terminated):
        raise process.Terminated(reason.code, f"terminated; {kept}") from reason
    raise process.Terminated(130, f"interrupted; {kept}") from reason
