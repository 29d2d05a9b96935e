"""What the commands that run studies have in common: options, a progress bar, and how they stop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ksim.cli.progress import Progress
from ksim.foundation import process
from ksim.foundation.errors import KsimError

if TYPE_CHECKING:
    from ksim.simulation.scenario import Scenario
    from ksim.study.directory import StudyDirectory
    from ksim.study.means import SweepPoint
    from ksim.study.rows import Row

StudyFolder = Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="directory of the study: every run"
                                           " is kept there as it ends, and all of them in runs.parquet")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, show_default="one per CPU", help="number of processes,"
                                          " or of CPUs that Ray uses")]
On = Annotated[str, typer.Option("--on", metavar="processes|ray", help="where the runs are computed: in processes of"
                                 " this machine, or by Ray, on this machine or a cluster")]
Address = Annotated[str | None, typer.Option("--address", metavar="ADDRESS", help="the Ray cluster to use, such as"
                                             " auto or ray://head:10001; by default Ray is started on this machine")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the study that is in the output directory")]


def keep_going(study: "StudyDirectory", scenario: "Scenario", rows: "list[Row]", jobs: int | None, on: str,
               address: str | None) -> None:
    """Run what *study* lacks of *rows*, behind a progress bar; an interrupt or a killed process says how to go on."""
    from ksim.study.running import run_into

    try:
        with Progress(len(study.without(rows)), quiet=False, what="runs", every=1) as progress:
            run_into(study, scenario, rows, progress.advance, jobs, on, address)
    except (KeyboardInterrupt, process.Terminated, KsimError) as reason:
        done = len(rows) - len(study.without(rows))
        stop(reason, f"{done:,} of {len(rows):,} runs are kept; --resume goes on with the others")


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
