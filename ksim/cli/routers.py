"""`ksim routers`: all routers on one trace, under the same requests."""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.output import JsonFile, Wide, console, say, write_json
from ksim.cli.pools import Pools
from ksim.cli.progress import Progress
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.cli.studies import Address, Jobs, On, Resume, stop
from ksim.foundation import process
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.study.routers.comparison import RouterComparison
    from ksim.study.routers.plan import RoutersPlan

Routers = Annotated[str | None, typer.Option("--routers", metavar="NAME,NAME", show_default="all", help="the routers to"
                                             " compare, such as round_robin,prefix_aware:load_tokens=64 or"
                                             " package.module:Class; of a fleet that splits requests, pair routers")]
Staleness = Annotated[str | None, typer.Option("--staleness", metavar="TIME,TIME", show_default="that of the scenario",
                                               help="ages of what routers see, such as 0,50ms,200ms: metrics are"
                                               " scraped as often, and they and KV events arrive as late")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="runs of each router, each with a seed of its own")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study: every"
                                             " run is kept there as it ends, beside routers.csv and routers.png")]


def routers(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    names: Routers = None, staleness: Staleness = None, seeds: Seeds = 1, output: Output = None,
    json_file: JsonFile = None, wide: Wide = False, jobs: Jobs = None, on: On = "processes", address: Address = None,
    resume: Resume = False, settings: Settings = None, pool: Pools = None, seed: Seed = None, force: Force = False,
) -> None:
    """Compare routers under the same requests: how long users wait, what caches hold, and regret."""
    from ksim.simulation.scenario import Scenario
    from ksim.study.routers.candidates import listed
    from ksim.study.routers.plan import RoutersPlan, ages
    from ksim.study.running import check_names
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
    _show(found)
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


def _show(found: "RouterComparison") -> None:
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
