"""`ksim run` and `ksim replay`: simulate, report, and keep the run."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import frozen

from ksim.cli.flags import (
    ChunkTokens,
    Columns,
    Format,
    SkipEmpty,
    Sort,
    TimeUnit,
    columns_of,
    given,
    oracle_of,
    with_serve_flags,
)
from ksim.cli.progress import Progress
from ksim.foundation import process

Output = Annotated[Path | None, typer.Option("-o", "--output", help="directory to write the run to")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, no report")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="draw plots/*.png (with -o)")]
Timeline = Annotated[bool, typer.Option("--trace/--no-trace", help="write trace.json.gz for Perfetto (with -o)")]
Window = Annotated[str, typer.Option("--trace-window", metavar="FROM:TO", help="seconds of the run whose kernels"
                                     " trace.json.gz shows; by default its first, up to 50,000 slices")]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", help="write rows while the run goes on, and keep"
                                             " only what is in flight, for millions of requests (with -o): no plots,"
                                             " trace, kernels or attribution; by default above 50,000 requests or"
                                             " 10,000,000 output tokens", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a value of the scenario,"
                                                    " such as serve.max_num_seqs=64; may be repeated")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="processes to run replicas in that nothing couples")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier run in the output directory")]
Seed = Annotated[int | None, typer.Option("--seed", help="seed of everything random")]


@process.dedicated()
def run(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    output: Output = None, settings: Settings = None, seed: Seed = None, jobs: Jobs = 1, quiet: Quiet = False,
    plots: Plots = True, trace: Timeline = True, trace_window: Window = "", stream: Stream = None,
    force: Force = False,
    explain_defaults: Annotated[bool, typer.Option("--explain-defaults", help="say what the settings left open become,"
                                                   " and why, and do nothing else")] = False,
) -> None:
    """Simulate a scenario and report what users would see, and why."""
    from ksim.simulation.scenario import Scenario

    chosen = changed(Scenario.read(scenario), settings, seed)
    if explain_defaults:
        from ksim.cli.defaults_table import show
        from ksim.cli.screen import console

        show(console(), chosen)
    else:
        _simulate(chosen, Kept(output, plots, trace, _seconds(trace_window), stream, force), quiet, jobs)


@with_serve_flags
@process.dedicated()
def replay(
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="trace to replay; see `ksim list traces`")],
    model: Annotated[str, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")],
    gpu: Annotated[str | None, typer.Option(help="GPU, in its usual system")] = None,
    system: Annotated[str | None, typer.Option(help="system, in place of a GPU")] = None,
    engine: Annotated[str, typer.Option(help="release whose behaviour and defaults count")] = "vllm-0.33",
    nodes: Annotated[int | None, typer.Option(help="nodes of the system")] = None,
    router: Annotated[str, typer.Option(help="router before the replicas")] = "round_robin",
    oracle: Annotated[str | None, typer.Option(help="latency oracle; package.module:Class for your own, FILE.npz for a"
                                               " profile; by default measured where one ships, else learned")] = None,
    detail: Annotated[str, typer.Option(help="step or kernel")] = "step",
    trace_format: Format = "", columns: Columns = None, time_unit: TimeUnit = None, chunk_tokens: ChunkTokens = None,
    num_prompts: Annotated[int | None, typer.Option(help="replay only the first so many requests")] = None,
    request_rate: Annotated[float | None, typer.Option(help="replay at this mean rate, in requests/s")] = None,
    time_scale: Annotated[float | None, typer.Option(help="stretch (>1) or compress (<1) the time of arrivals")] = None,
    spread: Annotated[bool, typer.Option("--spread", help="spread arrivals of equal time stamps")] = False,
    sort: Sort = False, skip_empty: SkipEmpty = False,
    max_concurrency: Annotated[int | None, typer.Option(help="most requests in flight")] = None,
    goodput: Annotated[list[str] | None, typer.Option(metavar="NAME:MS", help="a target, such as ttft:500")] = None,
    output: Output = None, settings: Settings = None, seed: Seed = None, jobs: Jobs = 1, quiet: Quiet = False,
    plots: Plots = True, trace: Timeline = True, trace_window: Window = "", stream: Stream = None,
    force: Force = False, serve: dict[str, Any] | None = None,
) -> None:
    """Replay a request trace against a model on a GPU, without a scenario file."""
    from ksim.simulation.scenario import Scenario

    recorded = {"path": str(trace_file), "format": trace_format, "limit": num_prompts, "rate": request_rate,
                "time_scale": time_scale, "spread": spread, "sort": sort, "columns": columns_of(columns),
                "time_unit": time_unit, "chunk_tokens": chunk_tokens, "empty": "skip" if skip_empty else None}
    table = {
        "model": model, "engine": engine, "gpu": gpu, "system": system, "nodes": nodes, "router": router,
        "oracle": oracle_of(oracle), "detail": detail, "serve": serve or {}, "slo": _targets(goodput or []),
        "workload": {"replay": given(recorded), "max_concurrency": max_concurrency},
    }
    scenario = Scenario.of(given(table), "replay", Path.cwd())
    kept = Kept(output, plots, trace, _seconds(trace_window), stream, force)
    _simulate(changed(scenario, settings, seed), kept, quiet, jobs)


def _targets(pairs: list[str]) -> dict[str, str]:
    """Latency targets as `vllm bench serve --goodput` writes them, in milliseconds."""
    from ksim.foundation.errors import ConfigError

    targets = {}
    for pair in (part for text in pairs for part in text.split()):
        name, _, value = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el") or not value.replace(".", "", 1).isdecimal():
            raise ConfigError("--goodput", f"expected ttft:MS, tpot:MS or e2el:MS, not {pair!r}")
        targets[name] = f"{value} ms"
    return targets


def changed(scenario: Any, settings: list[str] | None, seed: int | None) -> Any:
    """*scenario* with the values that flags have set."""
    from ksim.simulation.scenario import setting

    changes = dict(setting(text) for text in settings or [])
    if seed is not None:
        changes["seed"] = seed
    return scenario.with_values(changes) if changes else scenario


def _seconds(text: str) -> tuple[float, float] | None:
    """A window of time such as 10:20, or none; raises ConfigError for any other text."""
    from ksim.foundation.errors import ConfigError
    from ksim.foundation.units import LONGEST, quantity

    if not text:
        return None
    try:
        begin, end = map(quantity, text.split(":"))
    except ValueError:
        begin, end = 0.0, 0.0
    if not 0 <= begin < end <= LONGEST:
        raise ConfigError("--trace-window", f"expected FROM:TO in seconds, such as 10:20, not {text!r}")
    return begin, end


@frozen
class Kept:
    """What is kept of a run in the directory `output`, if there is one; the trace shows kernels of a `window` of it."""

    output: Path | None
    plots: bool
    trace: bool
    window: tuple[float, float] | None
    stream: bool | None = None
    force: bool = False

    def check(self) -> None:
        """Raise ConfigError for what cannot be kept: before the work, not after it."""
        from ksim.foundation.errors import ConfigError
        from ksim.report import run_directory

        if self.stream and (self.output is None or self.window):
            raise ConfigError("--stream", "writes rows to a directory, and no trace; give -o, and no --trace-window")
        if self.window and not (self.output and self.trace):
            raise ConfigError("--trace-window", "is of the trace that -o writes; give -o, and no --no-trace")
        if self.output is not None:
            run_directory.check(self.output.resolve(), force=self.force)


def _simulate(scenario: Any, kept: Kept, quiet: bool, jobs: int) -> None:
    from ksim.cli.long_runs import streams, warnings
    from ksim.simulation.extent import extent

    kept.check()
    found = extent(scenario)
    streamed = streams(found, kept.output, kept.stream, whole=kept.window is not None or jobs > 1)
    _remark(warnings(found, streamed, kept.stream))
    if streamed and jobs > 1:
        _remark([f"runs in one process, not in {jobs}: --stream writes the rows of all replicas in turn"])
    with Progress(found.requests, quiet) as progress:
        if streamed:
            _stream(scenario, kept, quiet, progress)
        else:
            _keep(scenario, kept, quiet, jobs, progress)


def _keep(scenario: Any, kept: Kept, quiet: bool, jobs: int, progress: Progress) -> None:
    from ksim.simulation.simulate import simulate

    result = simulate(scenario, progress.advance, jobs)
    if kept.output is not None:
        progress.writing()
        result.save(kept.output, plots=kept.plots, trace=kept.trace, window=kept.window)
    progress.stop()
    _remark(result.remarks)
    _check_served(result, kept.output)
    if not quiet:
        result.print()
        if kept.output is not None:
            print(f"written to {kept.output}")


def _stream(scenario: Any, kept: Kept, quiet: bool, progress: Progress) -> None:
    from ksim.simulation.streaming import stream

    assert kept.output is not None, "checked before"
    result = stream(scenario, kept.output, progress.advance)
    progress.stop()
    _remark(result.remarks)
    _check_served(result, kept.output)
    if not quiet:
        print(result.vllm_block())
        print(f"written to {kept.output}")


def _remark(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(f"ksim: {remark}", file=sys.stderr)


def _check_served(result: Any, output: Path | None) -> None:
    """Raise KsimError where all requests were rejected; the run is written all the same, with the reason of each."""
    from ksim.foundation.errors import KsimError

    refusals = result.refusals
    if len(refusals) and not result.served and not result.summary["unfinished"]:
        kept = f"; {output / 'requests.parquet'} has the reason of each" if output else ""
        raise KsimError(f"all {len(refusals):,} requests were rejected: {refusals.commonest()}{kept}")
