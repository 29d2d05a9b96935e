"""Run a scenario and keep its results: in memory until it ends, or, if it is long, row by row while it runs."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ksim.cli.output import report_console, say, write_json
from ksim.cli.progress import Progress, duration
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.simulation.fleet import Fleet
    from ksim.simulation.scenario import Scenario
    from ksim.simulation.workload_size import WorkloadSize

#: Arrivals that span so many days are worth a remark, and so is a single day with so many seconds between requests.
MANY_DAYS, RARE = 30, 60.0
#: What a streamed run does not have.
LOST = "plots, trace, kernels or attribution"


@frozen
class Kept:
    """What is kept of a run in the directory `output`, if there is one.

    The trace shows the kernels of a `window` of the run, in seconds.  `stream` is None where the size of the workload
    decides whether rows are written while the run goes on.  The summary is written to `json_file`, too.
    """

    output: Path | None
    plots: bool
    trace: bool
    window: tuple[float, float] | None
    stream: bool | None = None
    force: bool = False
    json_file: Path | None = None

    def claimed(self) -> AbstractContextManager[None]:
        """Holds the directory while the run goes on; raises ConfigError for results that cannot be kept."""
        from ksim.report import run_directory

        if self.stream and (self.output is None or self.window):
            raise ConfigError("--stream", "writes rows to a directory, and no trace; give -o, and no --trace-window")
        if self.window and not (self.output and self.trace):
            raise ConfigError("--trace-window", "is of the trace that -o writes; give -o, and no --no-trace")
        return nullcontext() if self.output is None else run_directory.claimed(self.output.resolve(), force=self.force)


def run_and_keep(scenario: "Scenario", kept: Kept, quiet: bool, jobs: int) -> None:
    """Run *scenario* in *jobs* processes, report unless *quiet*, and write what is to be *kept*.

    The fleet is placed before the workload is read: a misspelt model is refused before a long trace is read.
    """
    from ksim.simulation.fleet import Fleet
    from ksim.simulation.workload_size import WorkloadSize

    with kept.claimed():
        fleet = Fleet.of(scenario)
        fleet.check_memory()
        size = WorkloadSize.of(scenario)
        streamed = streams(size, kept.output, kept.stream, whole=kept.window is not None or jobs > 1)
        _remark(warnings(size, streamed, kept.stream))
        if streamed and jobs > 1:
            _remark([f"runs in one process, not in {jobs}: --stream writes the rows of all replicas in turn"])
        with Progress(size.requests, quiet) as progress:
            if streamed:
                _stream(fleet, kept, quiet, progress)
            else:
                _simulate(fleet, kept, quiet, jobs, progress)


def streams(size: "WorkloadSize", output: Path | None, wished: bool | None, whole: bool) -> bool:
    """Whether to write rows while the run goes on, as *wished*.

    By default a long run does so if it has an *output* directory and nothing was asked for that needs the *whole* run.
    """
    return wished if wished is not None else size.is_long and output is not None and not whole


def warnings(size: "WorkloadSize", streamed: bool, wished: bool | None) -> Iterator[str]:
    """Remarks before a long run, and on arrivals that span so much time that their unit is probably wrong."""
    from ksim.simulation.workload_size import MANY_REQUESTS, MANY_TOKENS
    from ksim.workload.replay import DAY, UNITS_HINT

    days = size.span / DAY
    if days >= MANY_DAYS or (days >= 1 and size.span >= RARE * size.requests):
        yield f"arrivals span {days:,.0f} days; {UNITS_HINT}"
    if not size.is_long:
        return
    amount = f"about {size.requests:,} requests and {size.tokens:,} output tokens"
    whole = f"{size.memory / 1e9:.1f} GB of memory and {duration(size.seconds)}"
    if not streamed:
        yield (f"{amount}: keeping the whole run may take {whole}; --stream -o DIR keeps only what is in flight, but"
               f" has no {LOST}")
    elif wished is None:
        yield (f"{amount}: above {MANY_REQUESTS:,} requests or {MANY_TOKENS:,} output tokens, rows are written while"
               f" the run goes on, without {LOST}; --no-stream keeps the whole run, which may take {whole}")


def _simulate(fleet: "Fleet", kept: Kept, quiet: bool, jobs: int, progress: Progress) -> None:
    """Run to the end, then write and report."""
    from ksim.simulation.simulate import simulate

    result = simulate(fleet, progress.advance, jobs)
    if kept.output is not None:
        progress.writing()
        result.save(kept.output, plots=kept.plots, trace=kept.trace, window=kept.window)
    progress.stop()
    _remark(result.remarks)
    _write_summary(result, kept.json_file)
    _check_served(result, kept.output)
    if not quiet:
        result.print(report_console())
        if kept.output is not None:
            say(f"written to {kept.output}")


def _stream(fleet: "Fleet", kept: Kept, quiet: bool, progress: Progress) -> None:
    """Run and write rows meanwhile, then report."""
    from ksim.simulation.streaming import stream

    assert kept.output is not None, "only a run with an output directory is streamed"
    result = stream(fleet, kept.output, progress.advance)
    progress.stop()
    _remark(result.remarks)
    _write_summary(result, kept.json_file)
    _check_served(result, kept.output)
    if not quiet:
        report_console().print(result.vllm_block(), markup=False, highlight=False, soft_wrap=True)
        say(f"written to {kept.output}")


def _write_summary(result: Any, json_file: Path | None) -> None:
    """Write what summary.json has, and the remarks, to *json_file*, if one is given."""
    write_json(json_file, {**result.summary, "remarks": list(result.remarks)})


def _remark(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(f"ksim: {remark}", file=sys.stderr)


def _check_served(result: Any, output: Path | None) -> None:
    """Raise KsimError where all requests were rejected; the run is written all the same, with the reasons."""
    refusals = result.refusals
    if len(refusals) and not result.served and not result.summary["unfinished"]:
        kept = f"; {output / 'requests.parquet'} has the reason of each" if output else ""
        raise KsimError(f"all {len(refusals):,} requests were rejected: {refusals.commonest()}{kept}")
