"""`ksim run` and `ksim replay`: simulate a scenario, or a trace without one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli.defaults import explain_defaults as show_defaults
from ksim.cli.flags import (
    ChunkTokens,
    Columns,
    Format,
    GpuName,
    ModelName,
    Nodes,
    OracleName,
    SkipEmpty,
    Sort,
    SystemName,
    TimeUnit,
    columns_of,
    given,
    oracle_of,
    with_serve_flags,
)
from ksim.cli.keep import Kept, run_and_keep
from ksim.cli.output import JsonFile, Wide
from ksim.cli.pools import Pools, pool_changes, with_pools
from ksim.foundation import process
from ksim.foundation.errors import ConfigError

Output = Annotated[Path | None, typer.Option("-o", "--output", help="directory to write the run to")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress, no report")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="draw plots/*.png (with -o)")]
Timeline = Annotated[bool, typer.Option("--trace/--no-trace", help="write trace.json.gz for Perfetto (with -o)")]
Window = Annotated[str, typer.Option("--trace-window", metavar="FROM:TO", help="seconds of the run whose kernels"
                                     " trace.json.gz shows; by default the first ones, up to 50,000 slices")]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", help="write rows while the run goes on, and keep"
                                             " only what is in flight, for millions of requests (with -o): no plots,"
                                             " trace, kernels or attribution; by default above 50,000 requests or"
                                             " 10,000,000 output tokens", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a value of the scenario,"
                                                    " such as serve.max_num_seqs=64; may be repeated")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="processes for replicas that do not depend on each"
                                        " other")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier run in the output directory")]
PairRouter = Annotated[str | None, typer.Option(help="how a prefill and a decode engine are chosen, by default"
                                                " each_side")]
Seed = Annotated[int | None, typer.Option("--seed", help="seed of all random numbers")]


@process.dedicated()
def run(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    output: Output = None, settings: Settings = None, pool: Pools = None, seed: Seed = None, jobs: Jobs = 1,
    quiet: Quiet = False, plots: Plots = True, trace: Timeline = True, trace_window: Window = "", stream: Stream = None,
    force: Force = False, json_file: JsonFile = None, wide: Wide = False,
    explain_defaults: Annotated[bool, typer.Option("--explain-defaults", help="show the settings that the scenario"
                                                   " leaves open, their values and why; do not run it")] = False,
) -> None:
    """Simulate a scenario, and report what its users would see and why."""
    from ksim.simulation.scenario import Scenario

    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    if explain_defaults:
        show_defaults(chosen, json_file)
    else:
        run_and_keep(chosen, Kept(output, plots, trace, _seconds(trace_window), stream, force, json_file), quiet, jobs)


@with_serve_flags
@process.dedicated()
def replay(
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="trace to replay, or a folder of"
                                               " sessions; see `ksim list traces`")],
    model: ModelName, gpu: GpuName = None, system: SystemName = None,
    engine: Annotated[str, typer.Option(help="release whose behaviour and defaults are simulated")] = "vllm-0.33",
    nodes: Nodes = None,
    router: Annotated[str, typer.Option(help="router in front of the engines")] = "round_robin",
    pair_router: PairRouter = None,
    oracle: OracleName = None,
    detail: Annotated[str, typer.Option(help="level of detail: step or kernel")] = "step",
    trace_format: Format = "", columns: Columns = None, time_unit: TimeUnit = None, chunk_tokens: ChunkTokens = None,
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", "--limit", help="replay only so many requests,"
                                                    " the first ones")] = None,
    request_rate: Annotated[float | None, typer.Option(help="replay at this mean rate, in requests/s")] = None,
    time_scale: Annotated[float | None, typer.Option(help="stretch (>1) or compress (<1) arrival times")] = None,
    spread: Annotated[bool, typer.Option("--spread", help="spread arrivals with equal time stamps")] = False,
    sort: Sort = False, skip_empty: SkipEmpty = False,
    max_concurrency: Annotated[int | None, typer.Option(help="most requests in flight")] = None,
    goodput: Annotated[list[str] | None, typer.Option(metavar="NAME:MS", help="a latency target, such as"
                                                         " ttft:500")] = None,
    output: Output = None, settings: Settings = None, pool: Pools = None, seed: Seed = None, jobs: Jobs = 1,
    quiet: Quiet = False, plots: Plots = True, trace: Timeline = True, trace_window: Window = "", stream: Stream = None,
    force: Force = False, json_file: JsonFile = None, wide: Wide = False, serve: dict[str, Any] | None = None,
) -> None:
    """Replay a request trace against a model on a GPU, without a scenario file."""
    from ksim.simulation.scenario import Scenario

    recorded = {"path": str(trace_file), "format": trace_format, "limit": num_prompts, "rate": request_rate,
                "time_scale": time_scale, "spread": spread, "sort": sort, "columns": columns_of(columns),
                "time_unit": time_unit, "chunk_tokens": chunk_tokens, "empty": "skip" if skip_empty else None}
    table = {
        "model": model, "engine": engine, "gpu": gpu, "system": system, "nodes": nodes, "router": router,
        "pair_router": pair_router, "oracle": oracle_of(oracle), "detail": detail, "serve": serve or {},
        "slo": _targets(goodput or []),
        "workload": {"replay": given(recorded), "max_concurrency": max_concurrency},
    }
    scenario = Scenario.of(with_pools(given(table), pool or []), "replay", Path.cwd())
    kept = Kept(output, plots, trace, _seconds(trace_window), stream, force, json_file)
    run_and_keep(changed(scenario, settings, seed), kept, quiet, jobs)


def _targets(pairs: list[str]) -> dict[str, str]:
    """Latency targets as `vllm bench serve --goodput` writes them, in milliseconds."""
    targets = {}
    for pair in (part for text in pairs for part in text.split()):
        name, _, value = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el") or not value.replace(".", "", 1).isdecimal():
            raise ConfigError("--goodput", f"expected ttft:MS, tpot:MS or e2el:MS, not {pair!r}")
        targets[name] = f"{value} ms"
    return targets


def changed(scenario: Any, settings: list[str] | None, seed: int | None, pools: list[str] | None = None) -> Any:
    """*scenario* with the values that ``--pool``, ``--set`` and ``--seed`` give."""
    from ksim.simulation.scenario import setting

    changes = pool_changes(pools or [], scenario.pools) | dict(setting(text) for text in settings or [])
    if seed is not None:
        changes["seed"] = seed
    return scenario.with_values(changes) if changes else scenario


def _seconds(text: str) -> tuple[float, float] | None:
    """A window of time such as 10:20, or None for ""; raises ConfigError for any other text."""
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
