"""Run a scenario and keep its results: in memory until it ends, or, if it is long, row by row while it runs.

How far a run has come: a progress bar on a terminal, a line now and then elsewhere.

`ksim run --explain-defaults`: the settings that a scenario leaves open, pool by pool.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ksim.cli.flags import console, report_console, say, write_json
from ksim.cli.terminal import moves
from ksim.foundation.config import plain
from ksim.foundation.errors import ConfigError, KsimError
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.scenario.defaults import Deployment, Derived
    from ksim.scenario.model_card import WorkloadSize
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.fleet import Fleet
    from ksim.simulation.pool import EnginePool


#: Requests between two looks at the clock, and seconds between two lines where there is no terminal.
_EVERY, _PAUSE = 100, 30.0


class Progress:
    """Counts the requests of a run that have ended, out of about *total*, on standard error.

    On a terminal, a bar shows what the run does, how much is done, and the time left.  Elsewhere, a line says so every
    half minute.  A *quiet* run shows nothing.  *what* is counted may be something else, such as the runs of a study;
    the clock is looked at after *every* so many.
    """

    def __init__(self, total: int | None, quiet: bool, what: str = "requests", every: int = _EVERY):
        self._total, self._ended, self._what, self._every = total, 0, what, every
        self._bar: Any = None
        self._begin = self._said = time.monotonic()
        self._quiet, self._terminal = quiet, moves(sys.stderr)

    def __enter__(self) -> "Progress":
        if self._terminal and not self._quiet:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                            console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading" if self._what == "requests" else self._what, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one that has ended."""
        self._ended += 1
        if self._ended == 1 or self._ended % self._every == 0:
            self._show()

    def writing(self) -> None:
        """Show that all requests have ended, and the run is being written."""
        if self._bar is not None:
            self._bar.update(self._task, description="writing", completed=self._ended, total=self._ended)

    def _show(self) -> None:
        if self._bar is not None:
            total = self._total and max(self._total, self._ended)
            self._bar.update(self._task, description=f"{self._what} ended", completed=self._ended, total=total)
        elif not self._quiet and not self._terminal and time.monotonic() > self._said + _PAUSE:
            self._said = time.monotonic()
            print(f"ksim: {self._line(self._said - self._begin)}", file=sys.stderr)

    def _line(self, seconds: float) -> str:
        done = f"{self._ended:,} {self._what} ended after {seconds:,.0f} s"
        if not self._total or self._ended >= self._total:
            return done
        left = seconds * (self._total - self._ended) / self._ended
        return f"{done}, {self._ended / self._total:.0%} of about {self._total:,}; about {duration(left)} left"


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
        from ksim.views import run_directory

        if self.stream and (self.output is None or self.window):
            raise ConfigError("--stream", "writes rows to a directory, and no trace; give -o, and no --trace-window")
        if self.window and not (self.output and self.trace):
            raise ConfigError("--trace-window", "is of the trace that -o writes; give -o, and no --no-trace")
        return nullcontext() if self.output is None else run_directory.claimed(self.output.resolve(), force=self.force)


def run_and_keep(scenario: "Scenario", kept: Kept, quiet: bool, jobs: int) -> None:
    """Run *scenario* in *jobs* processes, report unless *quiet*, and write what is to be *kept*.

    The fleet is placed before the workload is read: a misspelt model is refused before a long trace is read.
    """
    from ksim.scenario.model_card import WorkloadSize
    from ksim.simulation.fleet import Fleet

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
    from ksim.scenario.model_card import MANY_REQUESTS, MANY_TOKENS
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
    from ksim.simulation.simulate import stream

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


def explain_defaults(scenario: "Scenario", json_file: Path | None = None) -> None:
    """Print every setting that *scenario* leaves open, the value that the engine derives, and why."""
    from ksim.simulation.fleet import Fleet

    fleet = Fleet.of(scenario)
    derived = {pool.name: _derived(pool, scenario.of_pool(pool.name) if pool.name else scenario)
               for pool in fleet.pools}
    write_json(json_file, {"pools": [_content(pool, derived[pool.name]) for pool in fleet.pools]})
    for pool in fleet.pools:
        _explain(pool, derived[pool.name])
    if fleet.splits and scenario.pair_router is None:
        console().print("pair_router: each_side, the default between prefill and decode engines")


def _derived(pool: "EnginePool", scenario: "Scenario") -> "list[Derived]":
    """Return the settings that the engines of *pool* derive from *scenario*, and the oracle if none is named."""
    from ksim.scenario.defaults import Derived

    deployment, oracle = pool.deployment, pool.deployment.scenario.oracle
    rows = [*_figures(deployment), *deployment.explain(scenario.serve), _kv_blocks(deployment),
            *_transfers(pool, scenario)]
    if scenario.oracle is None and oracle is not None:
        ships = "a" if oracle.name == "measured" else "no"
        rows.append(Derived("oracle", oracle.name, f"{ships} profile of {deployment.gpu.name} ships"))
    return rows


def _figures(deployment: "Deployment") -> "Iterator[Derived]":
    """The figures of its GPU that a scenario states in place of those of the GPU's file."""
    from ksim.foundation.config import Choice, flat
    from ksim.scenario.defaults import Derived

    if isinstance(gpu := deployment.scenario.gpu, Choice):
        for key, value in flat(gpu.options, "gpu."):
            yield Derived(key, value, f"as set, in place of the figure of {gpu.name}")


def _content(pool: "EnginePool", derived: "list[Derived]") -> dict[str, Any]:
    deployment = pool.deployment
    return {"pool": pool.name or None, "engine": deployment.version.name, "model": deployment.model.name,
            "gpu": deployment.gpu.name,
            "settings": [{"setting": row.setting, "value": plain(row.value), "from": row.source} for row in derived]}


def _explain(pool: "EnginePool", derived: "list[Derived]") -> None:
    deployment, version = pool.deployment, pool.deployment.version
    title = f"{version.name}, {deployment.model.name} on {deployment.gpu.name}"
    rows = Table.of("setting", "value", "from", title=f"pool {pool.name}: {title}" if pool.name else title)
    for row in derived:
        rows.add_row(row.setting, _brief(row.value), row.source)
    console().print(rows)
    console().print(f"{version.name}: {version.source}")


def _transfers(pool: "EnginePool", scenario: "Scenario") -> "Iterator[Derived]":
    """The connector of a pool that sends or takes KV, and what the pool's engines do with it."""
    from ksim.scenario.defaults import Derived

    config, asked = pool.deployment.serve.kv_transfer_config, scenario.serve.kv_transfer_config
    if config is None:
        return
    reasons = {"kv_connector": "the default between prefill and decode engines", "kv_role": f"role of pool {pool.name}"}
    for key, reason in reasons.items():
        is_set = asked is not None and getattr(asked, key) is not None
        yield Derived(f"kv_transfer_config.{key}", getattr(config, key), "as set" if is_set else reason)


def _brief(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if len(value) > 8:
        return f"{len(value)} sizes up to {max(value)}"
    return ", ".join(map(str, value)) or "none"


def _kv_blocks(deployment: "Deployment") -> "Derived":
    """The number of KV blocks that follows from the other settings."""
    from ksim.foundation.units import GIB
    from ksim.scenario.cache_layout import RESERVED
    from ksim.scenario.defaults import Derived
    from ksim.scenario.sizing import memory

    part = memory(deployment.model, deployment.shards[0], deployment.gpu, deployment.serve)
    budget = (f"{part.usable / GIB:.2f} GiB usable - {part.weights / GIB:.2f} weights - {part.activations / GIB:.2f}"
              f" activations - {RESERVED / GIB:.2f} reserved, {part.cache_per_token / 1024:.0f} KiB a token")
    given_blocks = deployment.serve.num_gpu_blocks_override
    return Derived("num_gpu_blocks", deployment.kv_blocks + 1, "as set" if given_blocks else budget)
