"""`ksim pareto`: which settings of a scenario are worth having, between energy and latency or any other objectives."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.run import Force, Seed, Settings, changed

if TYPE_CHECKING:
    from ksim.studies.grid import Outcome
    from ksim.studies.scenario import Scenario


def pareto(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    over: Annotated[list[str], typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a value of the scenario and what"
                                            " to try for it, such as serve.tensor_parallel_size=1,2,4; may be repeated,"
                                            " for every combination")],
    objective: Annotated[list[str] | None, typer.Option("--objective", metavar="KEY", help="a number of summary.json to"
                                                        " have little of, or with max: before it much; two or more, by"
                                                        " default joules_per_output_token and median_e2el_ms")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="try only so many of the combinations, drawn by the"
                                               " seed")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="write points.csv, pareto.png,"
                                                " and the front as scenarios")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write all points here, with all of"
                                                   " their numbers")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, show_default="one for each CPU", help="processes to run them"
                                             " in")] = None,
    settings: Settings = None, seed: Seed = None, force: Force = False,
) -> None:
    """Run a scenario with every combination of some settings, and name those that nothing beats."""
    from ksim.cli.pareto_files import check, content, save
    from ksim.cli.pareto_table import show
    from ksim.cli.phase_tables import write_json
    from ksim.studies.grid import Axis, combinations
    from ksim.studies.pareto import judge, objectives
    from ksim.studies.scenario import Scenario

    wanted, axes = objectives(objective or []), [Axis.parse(text) for text in over]
    chosen = changed(Scenario.read(scenario), settings, seed)
    combined = combinations(axes, sample, chosen.seed)
    check(output, json_file, force)
    points = judge(_outcomes(chosen, combined, jobs), wanted)
    show(points, wanted)
    if output is not None:
        save(output, f"Pareto front of {scenario.stem}", points, wanted)
        print(f"written to {output}")
    write_json(json_file, content(str(scenario), points, wanted))


def _outcomes(scenario: "Scenario", combined: Sequence[Any], jobs: int | None) -> "list[Outcome]":
    """Run them, counting on the terminal those that are done."""
    from rich.console import Console
    from rich.progress import track

    from ksim.studies.grid import outcomes

    with closing(outcomes(scenario, combined, jobs or os.cpu_count() or 1)) as found:
        return list(track(found, "points", len(combined), console=Console(stderr=True), transient=True,
                          disable=not sys.stderr.isatty()))
