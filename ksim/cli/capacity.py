"""`ksim capacity`: the highest rate that keeps latency targets, or the fewest GPUs that do at a given rate."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksim.cli.flags import JsonFile, Wide, console, say, write_json
from ksim.cli.pools import Pools
from ksim.cli.run import Settings, changed
from ksim.cli.studies import Address, Jobs, On, Resume, stop
from ksim.cli.terminal import moves
from ksim.foundation import process
from ksim.foundation.errors import KsimError, WorkerLost

if TYPE_CHECKING:
    from ksim.study.capacity.ask import Capacity

Slo = Annotated[list[str] | None, typer.Option("--slo", metavar="METRIC:STATISTIC:LIMIT", help="a latency target, such"
                                               " as ttft:p99:1s or tpot:mean:50ms: ttft, tpot, itl, e2el or queue; a"
                                               " percentile, median or mean; may be repeated; by default those of the"
                                               " scenario, for 99 % of requests each")]
Rate = Annotated[float | None, typer.Option("--rate", help="requests/s to carry: asks for the fewest GPUs; by default"
                                            " the highest rate is asked for")]
Over = Annotated[list[str] | None, typer.Option("--over", metavar="KEY=VALUE,VALUE", help="a key of the scenario and"
                                                " the values to compare, such as gpu=h100,h200; may be repeated, for"
                                                " every combination")]
Requests = Annotated[int | None, typer.Option(min=1, show_default="as many as the targets need",
                                              help="requests of a replication")]
Replications = Annotated[int | None, typer.Option(min=2, show_default="12", help="replications of a rate, at most; as"
                                                  " few are played as decide")]
NoModelError = Annotated[bool, typer.Option("--no-model-error", help="leave the errors of the latency model out of the"
                                            " interval")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="write capacity.json, best.toml,"
                                             " plots/curve.png, and a row of each run")]
StudySeed = Annotated[int | None, typer.Option("--seed", help="seed of the replications' traffic")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier study in the output directory")]


def capacity(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    slo: Slo = None, rate: Rate = None, over: Over = None, requests: Requests = None, replications: Replications = None,
    no_model_error: NoModelError = False, output: Output = None, json_file: JsonFile = None, wide: Wide = False,
    jobs: Jobs = None, on: On = "processes", address: Address = None, settings: Settings = None, pool: Pools = None,
    seed: StudySeed = None, force: Force = False, resume: Resume = False,
) -> None:
    """How many requests a second keep the latency targets or, with --rate, how many GPUs that takes."""
    from ksim.scenario.scenario import Scenario
    from ksim.study.capacity.ask import capacity as ask

    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    with stopped(output), progress() as told:
        found = ask(chosen, slo or (), rate, over or (), requests=requests, replications=replications,
                    model_errors=not no_model_error, jobs=jobs, on=on, address=address, output=output, force=force,
                    resume=resume, title=scenario.stem, on_progress=told, on_estimate=_estimated)
    _show(found, output)
    write_json(json_file, found.document)
    if found.best is None:
        raise KsimError(found.sentence)


def _estimated(text: str) -> None:
    """Say on standard error what to expect, long before the answer."""
    print(f"ksim: {text}", file=sys.stderr)


def _show(found: "Capacity", output: Path | None) -> None:
    """Print the answer, in Markdown where there is no terminal; without one, only why several set-ups have none."""
    screen = console()
    answer = [found.text] if found.best else [found.table] if len(found.standings) > 1 else []
    if found.best and screen.is_terminal:
        screen.print(found.set_ups)
        answer = [*found.left_out, found.sentence, *found.remarks]
    for text in answer:
        screen.print(text, markup=False, highlight=False, soft_wrap=not screen.is_terminal)
    if output is not None:
        say(f"written to {output}")


@contextmanager
def stopped(output: Path | None) -> Iterator[None]:
    """Say where the runs are that had ended before an interrupt, or before a process was lost."""
    try:
        yield
    except (KeyboardInterrupt, process.Terminated) as reason:
        if output is None or not (output / "runs.parquet").is_file():
            raise
        stop(reason, f"the runs so far are in {output / 'runs.parquet'}; --resume goes on")
    except WorkerLost as lost:
        if output is None or not (output / "runs.parquet").is_file():
            raise
        raise KsimError(f"{lost}; the runs so far are in {output / 'runs.parquet'}; --resume goes on") from lost


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """What shows how far a question is: a bar with the time left on a terminal, elsewhere a line now and then."""
    if not moves(sys.stderr):
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda text, done, parts: bar.update(task, description=text, completed=done, total=parts)


class _Lines:
    """Says on standard error what a question is about, no more often than every few seconds."""

    _EVERY = 10.0

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, text: str, done: int, parts: int) -> None:
        if time.monotonic() - self._said >= self._EVERY:
            self._said = time.monotonic()
            print(f"ksim: {text}, part {done + 1} of {max(parts, done + 1)}", file=sys.stderr)
