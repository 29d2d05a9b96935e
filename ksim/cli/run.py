"""`ksim run` and `ksim replay`: simulate a scenario, or a trace without one.

`ksim report`: a run or a study as one page for a browser.

`ksim explain`: where the time of a run's requests went, or which invariant a counter-example breaks.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import (
    OUTPUT_PANEL,
    TRACE_PANEL,
    ChunkTokens,
    Columns,
    Format,
    GpuName,
    JsonFile,
    JsonInFolder,
    ModelName,
    Nodes,
    OracleName,
    SkipEmpty,
    Sort,
    SystemName,
    TimeUnit,
    Wide,
    columns_of,
    console,
    given,
    oracle_of,
    say,
    with_serve_flags,
    write_json,
)
from ksim.cli.keep import Kept, run_and_keep
from ksim.cli.keep import explain_defaults as show_defaults
from ksim.cli.pools import Pools, pool_changes, with_pools
from ksim.foundation import process
from ksim.foundation.errors import ConfigError, KsimError
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.results.attribution import Breakdown
    from ksim.results.steps import Floats
    from ksim.testing.history import Moment
    from ksim.testing.replayed import Replayed, WrittenFault


Output = Annotated[Path | None, typer.Option("-o", "--output", rich_help_panel=OUTPUT_PANEL, help="directory to write"
                                             " the run to")]
Quiet = Annotated[bool, typer.Option("--quiet", rich_help_panel=OUTPUT_PANEL, help="no progress, no report")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", rich_help_panel=OUTPUT_PANEL, help="draw plots/*.png (with"
                                     " -o)")]
Timeline = Annotated[bool, typer.Option("--trace/--no-trace", rich_help_panel=OUTPUT_PANEL, help="write trace.json.gz"
                                        " for Perfetto (with -o)")]
Window = Annotated[str, typer.Option("--trace-window", metavar="FROM:TO", rich_help_panel=OUTPUT_PANEL, help="seconds"
                                     " of the run whose kernels trace.json.gz shows; by default the first ones, up to"
                                     " 50,000 slices")]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", rich_help_panel=OUTPUT_PANEL, help="write rows"
                                             " while the run goes on, and keep only what is in flight, for millions of"
                                             " requests (with -o): no plots, trace, kernels or attribution; by default"
                                             " above 50,000 requests or 10,000,000 output tokens", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a value of the scenario,"
                                                    " such as serve.max_num_seqs=64; may be repeated")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="processes for replicas that do not depend on each"
                                        " other")]
Force = Annotated[bool, typer.Option("--force", rich_help_panel=OUTPUT_PANEL, help="replace an earlier run in the"
                                     " output directory")]
NumPrompts = Annotated[int | None, typer.Option("--num-prompts", "--limit", rich_help_panel=TRACE_PANEL, help="replay"
                                                " only so many requests, the first ones")]
RequestRate = Annotated[float | None, typer.Option(rich_help_panel=TRACE_PANEL, help="replay at this mean rate, in"
                                                   " requests/s")]
TimeScale = Annotated[float | None, typer.Option(rich_help_panel=TRACE_PANEL, help="stretch (>1) or compress (<1)"
                                                 " arrival times")]
Spread = Annotated[bool, typer.Option("--spread", rich_help_panel=TRACE_PANEL, help="spread arrivals with equal time"
                                      " stamps")]
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
    from ksim.scenario.scenario import Scenario

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
    detail: Annotated[str, typer.Option(help="level of detail: step or rank")] = "step",
    trace_format: Format = "", columns: Columns = None, time_unit: TimeUnit = None, chunk_tokens: ChunkTokens = None,
    num_prompts: NumPrompts = None, request_rate: RequestRate = None, time_scale: TimeScale = None,
    spread: Spread = False, sort: Sort = False, skip_empty: SkipEmpty = False,
    max_concurrency: Annotated[int | None, typer.Option(help="most requests in flight")] = None,
    goodput: Annotated[list[str] | None, typer.Option(metavar="NAME:MS", help="a latency target, such as"
                                                         " ttft:500")] = None,
    output: Output = None, settings: Settings = None, pool: Pools = None, seed: Seed = None, jobs: Jobs = 1,
    quiet: Quiet = False, plots: Plots = True, trace: Timeline = True, trace_window: Window = "", stream: Stream = None,
    force: Force = False, json_file: JsonFile = None, wide: Wide = False, serve: dict[str, Any] | None = None,
) -> None:
    """Replay a request trace against a model on a GPU, without a scenario file."""
    from ksim.scenario.scenario import Scenario

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
    from ksim.scenario.scenario import setting

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


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="what `ksim run -o` has written, or"
                                              " `ksim sweep`, `tune`, `routers` or `capacity`")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE",
                                         help="the page to write")] = Path("report.html"),
) -> None:
    """Write a run or a study as one HTML page that opens without a network."""
    from ksim.views.page import write_page
    from ksim.views.run_directory import readable

    with readable(directory):
        written = write_page(directory, output)
    say(f"written to {written}")


Figures = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="draw into this folder")]

#: How many steps of a counter-example are shown, up to the one that breaks the invariant.
_SHOWN = 12


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="directory that `ksim run -o` has written, or a"
                                        " counter-example of `check_policy`")],
    request: Annotated[int | None, typer.Option(metavar="ID", help="one request; by default what is behind the mean,"
                                                " the median and the p99 of all")] = None,
    json_file: JsonInFolder = None, wide: Wide = False, output: Figures = None,
) -> None:
    """Say where requests' time went: queue, prefill, others' prefill, decode, host and more, kernel by kernel."""
    from ksim.views.run_directory import readable

    if run.is_file():
        _explain_counter_example(run, request, json_file, output)
        return
    with readable(run):
        _explain_run(run, request, json_file, output)


def _explain_run(run: Path, request: int | None, json_file: Path | None, output: Path | None) -> None:
    from ksim.cli.phase_tables import PARTS, by_phase, largest, phase_table, plain, title_of
    from ksim.results.attribution import Breakdown

    breakdown = Breakdown.read(run)
    if request is None and not len(breakdown.ids):
        raise ConfigError(str(run), "no request of the run completed, so there is nothing to explain")
    columns = breakdown.statistics() if request is None else breakdown.of(request)
    titles = {key: PARTS.get(key) or title_of(key) for key in columns}
    screen, names = console(), breakdown.names
    heading = _heading(breakdown, request)
    screen.print(f"\n[bold]{run}[/]: {heading}")
    screen.print(phase_table(names, {titles[key]: column for key, column in columns.items()}, plain))
    for key, column in columns.items():
        parts = ", ".join(f"{group} {seconds / column.sum():.0%}" for group, seconds in largest(column, names))
        if parts and (request is not None or key.startswith("p99")):
            screen.print(f"* {titles[key]}: {parts}", markup=False)
    write_json(json_file, {"run": str(run), "request": request,
                           "times": {key: by_phase(names, column) for key, column in columns.items()}},
               make_folder=True)
    if drawn := _draw(output, f"Where the time went: {run.name}", heading, columns, names):
        screen.print(drawn, markup=False)


def _explain_counter_example(file: Path, request: int | None, json_file: Path | None, output: Path | None) -> None:
    if request is not None or output is not None:
        raise ConfigError("--request" if request is not None else "-o", f"is for the directory of a run, and {file} is"
                                                                        " a file")
    write_json(json_file, _counter_example(file), make_folder=True)


def _heading(breakdown: "Breakdown", request: int | None) -> str:
    if request is None:
        return f"the completed requests, {len(breakdown.ids):,} of them"
    row = breakdown.place(request)
    engines = breakdown.engines(request)
    return f"request {request}, {int(breakdown.output[row]):,} output tokens{f', {engines}' if engines else ''}"


def _draw(folder: Path | None, title: str, note: str, columns: "dict[str, Floats]", names: list[str]) -> str:
    """Draw a panel for each metric, or, for one request, for each part of its time."""
    from ksim.cli.phase_tables import PARTS, draw, title_of
    from ksim.results.attribution import by_group, groups

    panels: dict[str, dict[str, Any]] = {}
    for key, column in columns.items():
        panel = PARTS.get(key) or key.partition("_")[2].upper()
        bar = "" if key in PARTS else title_of(key).partition(" ")[0]
        panels.setdefault(panel, {})[bar] = by_group(column, names)

    from ksim.views.figures.run import breakdown_chart

    return draw(folder, "explain.png", breakdown_chart(title, note, panels, groups(names)))


def _counter_example(path: Path) -> dict[str, Any]:
    """Print what the counter-example at *path* shows, and return it for a JSON file."""
    try:
        from ksim.testing.replayed import WrittenFault, replay
    except ImportError as error:
        raise KsimError(str(error)) from None
    screen, written = console(), WrittenFault.read(path)
    screen.print(f"\n{path}: a counter-example of `check_policy`", markup=False)
    screen.print(f"{written.subject} breaks {written.invariant} in step {written.step}: {written.problem}",
                 markup=False)
    if written.statement:
        screen.print(f"{written.invariant}: {written.statement}", markup=False)
    try:
        again = replay(path, written)
    except ConfigError as error:
        screen.print(f"! it cannot be played again: {error}", markup=False)
        return _fault_content(written, None)
    screen.print(f"{len(again.case.arrivals)} requests; {_limits(again)}", markup=False)
    screen.print(_steps(again, again.breach[0] if again.breach else written.step))
    for line in _verdict(written, again):
        screen.print(line, markup=False)
    screen.print(f"to see it on the clock: ksim run {path} -o DIR, then ksim explain DIR", markup=False)
    return _fault_content(written, again)


def _verdict(written: "WrittenFault", again: "Replayed") -> list[str]:
    untold = f" (the file could not hold its {written.untold})" if written.untold else ""
    if again.breach is None:
        return [f"* played again, {written.invariant} holds{untold}: the policy has changed since, or a scheduler or"
                " cache of its own is at fault, which a scenario cannot name"]
    step, problem = again.breach
    return [f"* played again, it breaks in step {step}: {problem}{untold}"]


def _steps(again: "Replayed", last: int) -> Table:
    """A table of the steps up to the *last*: the computed requests, those that waited, and the preempted ones."""
    made = Table.of(">step", "computed (request: tokens)", "preempted", "running", "waiting")
    shown = [moment for moment in again.moments if moment.step <= last][-_SHOWN:]
    for moment in shown:
        made.add_row(str(moment.step), _computed(moment), _listed(moment.preempted), _listed(moment.running),
                     _listed(moment.waiting), style="bold" if moment.step == last else "")
    return made


def _computed(moment: "Moment") -> str:
    return ", ".join(f"{share.request}: {share.tokens}{' (admitted)' if share.admitted else ''}"
                     for share in moment.shares) or "-"


def _listed(requests: tuple[int, ...]) -> str:
    """The numbers of up to ten requests, and how many more there are."""
    more = f" and {len(requests) - 10} more" if len(requests) > 10 else ""
    return f"{', '.join(map(str, requests[:10]))}{more}"


def _limits(again: "Replayed") -> str:
    settings = again.case.settings
    return (f"max_num_batched_tokens {settings['max_num_batched_tokens']}, max_num_seqs {settings['max_num_seqs']},"
            f" {settings['blocks']} KV blocks of {settings['block_tokens']} tokens")


def _fault_content(written: "WrittenFault", again: "Replayed | None") -> dict[str, Any]:
    now = again and again.breach
    return {"invariant": written.invariant, "statement": written.statement, "subject": written.subject,
            "step": written.step, "problem": written.problem, "played_again": again is not None,
            "breaks_again": now and {"step": now[0], "problem": now[1]}}
