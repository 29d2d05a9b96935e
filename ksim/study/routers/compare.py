"""Compare routers, in Python."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ksim.simulation.scenario import Scenario
from ksim.study.routers.comparison import RouterComparison
from ksim.study.routers.plan import RoutersPlan
from ksim.study.routers.running import AgainstTheBest
from ksim.study.rows import Row
from ksim.study.running import check_names, run_into
from ksim.study.workers import PROCESSES, check


def routers(scenario: Scenario | str | Path, routers: str | Sequence[str] = (), staleness: Sequence[Any] = (),
            seeds: int = 1, jobs: int | None = None, on: str = PROCESSES, output: Path | str | None = None,
            resume: bool = False, force: bool = False, address: str | None = None) -> RouterComparison:
    """Run *scenario* with each of *routers*, by default all that there are, under the same requests.

    A router is "name" or "name:option=value".  Those that act on what they see of engines run once for each
    *staleness*, such as ``[0, "50ms"]``, by default that of the scenario, and all run once for each of so many *seeds*.
    Each run is held against that of its seed in which `omniscient` routes.  Runs are computed in *jobs* processes, by
    default one per CPU, or *on* "ray".  With *output*, every run is kept there as it ends, and *resume* goes on with
    what is there.  A router that cannot run is a row with its problem.  Raises KsimError for what no run can have.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = RoutersPlan.of(scenario, [routers] if isinstance(routers, str) else routers, staleness, seeds)
    check(on, address)
    check_names(scenario, plan.points)
    path = None if output is None else Path(output)
    return compare(plan, f"Routers compared: {Path(scenario.model).name}", path, resume, force, jobs=jobs, on=on,
                   address=address)


def compare(plan: RoutersPlan, title: str, output: Path | None = None, resume: bool = False, force: bool = False,
            on_end: Callable[[], None] = lambda: None, **where: Any) -> RouterComparison:
    """Run *plan*, in a directory of its own if there is an *output*; `on_end` is called for each run that ends."""
    run, ended = AgainstTheBest(plan), list[Row]()
    if output is not None:
        with plan.study(output, title, resume, force) as study:
            run_into(study, plan.scenario, plan.rows, on_end, run=run, **where)
        return RouterComparison.read(output)

    def keep(row: Row) -> None:
        ended.append(row)
        on_end()

    run(plan.scenario, plan.rows, keep, **where)
    return RouterComparison(title, sorted(ended, key=lambda row: row.key))
