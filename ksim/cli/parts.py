"""`ksim step`: one step, priced kernel by kernel.

`ksim step --speculative`: what a step with its drafts costs beside the plain one, and when speculation pays.

`ksim collectives`: the time and energy of messages between GPUs.

`ksim routing`: which experts an engine chose, as a scenario's `routing` takes it, and how uneven that makes ranks.

`ksim roofline`: the kernels of a step under a GPU's roofline, and whether their eta carries over to other GPUs.
"""

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import asdict

from ksim.cli.flags import (
    STDOUT,
    GpuName,
    JsonFile,
    JsonInFolder,
    ModelName,
    Nodes,
    OracleName,
    SystemName,
    Wide,
    batch_of,
    console,
    scenario_of,
    with_adapters,
    with_step_flags,
    words_of,
    write_json,
)
from ksim.foundation.errors import ConfigError
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.flow.steps import KernelCost, StepCost
    from ksim.scenario.defaults import Deployment
    from ksim.scenario.messages import Message
    from ksim.scenario.routed import RoutedExperts, Unevenness
    from ksim.scenario.scenario import Scenario
    from ksim.study.speculation import Payoff


#: Short names of keys, as METHOD,k=3,acceptance=0.8 has them.
_SHORT = {"k": "num_speculative_tokens", "length": "synthetic_acceptance_length"}


def table_of(text: str) -> dict[str, Any]:
    """The speculative config that *text* says: JSON, as for ``--speculative-config``, or METHOD,KEY=VALUE,...

    The short form has k for num_speculative_tokens; acceptance is the rate of a geometric one, and length the mean
    tokens of a verification (vLLM's synthetic_acceptance_length).  Raises ConfigError for any other text.
    """
    if text.lstrip().startswith("{"):
        return _json(text)
    method, *pairs = (part.strip() for part in text.split(","))
    config: dict[str, Any] = {"method": method}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise ConfigError("--speculative", f"expected JSON, or METHOD,KEY=VALUE such as mtp,k=3,acceptance=0.8, not"
                                               f" {pair!r}")
        config[_SHORT.get(key, key)] = _value(value)
    if not isinstance(rate := config.get("acceptance", {}), dict):
        config["acceptance"] = {"name": "geometric", "rate": rate}
    if "synthetic_acceptance_length" in config:
        config["rejection_sample_method"] = "synthetic"
    return config


def _json(text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("--speculative", f"is not valid JSON: {error}") from None
    return value


def _value(text: str) -> Any:
    """A number or a truth value as such, anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def compare(scenario: "Scenario", batch: "Batch", plot: Path | None) -> dict[str, Any]:
    """Print what a step of *scenario* over *batch* costs with its drafts and without, and up to which batch it pays.

    Returns the same for a JSON file.
    """
    from ksim.study.speculation import compared, payoff

    if not batch.contexts:
        raise ConfigError("--speculative", "compares sequences that decode; name some with --decode")
    found, step = payoff(scenario, batch.contexts.total // len(batch.contexts)), compared(scenario, batch)
    screen = console()
    screen.print(f"the step {1e3 * step.seconds:.3f} ms: {1e3 * step.target:.3f} of the target,"
                 f" {1e3 * step.verification:.3f} of rejection sampling, {1e3 * step.draft:.3f} of the drafter;"
                 f" the same sequences without speculation {1e3 * step.plain:.3f} ms\n", highlight=False)
    screen.print(_curve(found))
    screen.print(f"{found.title}: {found.drafts} drafted tokens, {found.length:.2f} tokens a verification; "
                 f"{found.sentence}.\n", highlight=False)
    if plot is not None:
        _draw(found, plot)
        screen.print(f"drawn to {plot}\n", highlight=False)
    return {**found.table, "step": {**asdict(step), "seconds": step.seconds}}


def _curve(found: "Payoff") -> Any:
    shown = Table.of(">sequences", ">ms a token, plain", ">ms a token, speculative", ">speed-up",
                     title=f"After {found.context:,} tokens each")
    for batch, plain, fast in zip(found.batches, found.plain, found.speculative, strict=True):
        shown.add_row(f"{batch:,}", f"{1e3 * plain:.3f}", f"{1e3 * fast:.3f}", f"{plain / fast:.2f}")
    return shown


def _draw(found: "Payoff", path: Path) -> None:
    from ksim.views.figures.studies import speculation_chart

    note = (f"{found.drafts} drafted tokens, {found.length:.2f} tokens a verification, {found.context:,} tokens of"
            f" context")
    sentence, curves = found.sentence.capitalize(), (found.batches, found.plain, found.speculative)
    try:
        speculation_chart(found.title, note, sentence, *curves, found.pays).save(path)
    except (OSError, ValueError) as error:
        raise ConfigError("--plot", f"{path}: cannot be written: {error}") from None


_COLUMNS = ("kernel", "family", "shape", ">runs", ">us each", ">us all", ">share", "bound", ">waves", ">idle", "launch",
            ">eta", ">90 % of us", "source")
_HIDE = ("source", "launch", "idle", "waves", "90 % of us", "eta", "family", "bound", "us each", "shape", "runs")


@with_step_flags
def step(
    model: ModelName, gpu: GpuName = None, system: SystemName = None,
    decode: Annotated[str, typer.Option(help="sequences that decode: COUNTxCONTEXT, with commas between")] = "",
    prefill: Annotated[str, typer.Option(help="prompt chunks: NEW+CONTEXT, with commas between")] = "",
    adapters: Annotated[str, typer.Option(help="tokens of each LoRA adapter, with commas between; all others are the"
                                               " base model's; drafts come on top")] = "",
    images: Annotated[str, typer.Option(help="images that are encoded before: WIDTHxHEIGHT, with commas between")] = "",
    oracle: OracleName = None,
    speculative: Annotated[str | None, typer.Option(help="speculate, and compare with plain steps: JSON as for"
                                                    " --speculative-config, or METHOD,KEY=VALUE,... such as"
                                                    " mtp,k=3,acceptance=0.8")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="draw the time a token over the batch, with"
                                              " speculation and without")] = None,
    json_file: JsonFile = None, wide: Wide = False,
    serve: dict[str, Any] | None = None,
) -> None:
    """Price one step of an engine, kernel by kernel: what runs, how long it takes, and what bounds it."""
    from ksim.scenario.defaults import Deployment

    serve = _speculating(serve or {}, speculative)
    batch = with_adapters(batch_of(decode, prefill), adapters, serve)
    scenario = scenario_of("step", model=model, gpu=gpu, system=system, oracle=oracle, serve=serve)
    deployment = Deployment.of(scenario)
    batch = _seeing(deployment, batch, images)
    if config := deployment.serve.speculative_config:
        from ksim.study.speculation import verified

        priced = _price(deployment, verified(batch, config))
        write_json(json_file, {**priced, **compare(scenario, batch, plot)})
    elif plot:
        raise ConfigError("--plot", "is about speculation; add --speculative, or leave it out")
    else:
        write_json(json_file, _price(deployment, batch))


def _seeing(deployment: "Deployment", batch: "Batch", images: str) -> "Batch":
    """*batch* with the *images* that the flag names; raises ConfigError where the model takes none."""
    from attrs import evolve

    from ksim.features.images import vision_of
    from ksim.workload.rows import image_size

    if not images:
        return batch
    if (vision := vision_of(deployment.model, deployment.serve)) is None:
        raise ConfigError("--images", f"{deployment.model.name} takes no images; leave it out")
    try:
        sizes = [image_size(size) for size in words_of(images)]
    except ValueError as error:
        raise ConfigError("--images", str(error)) from None
    return evolve(batch, images=tuple(vision.processor.patches(*size) for size in sizes))


def _speculating(serve: dict[str, Any], speculative: str | None) -> dict[str, Any]:
    """*serve* with the config that the flag *speculative* gives; raises ConfigError where there are two."""

    if speculative is None:
        return serve
    if "speculative_config" in serve:
        raise ConfigError("--speculative", "is --speculative-config in short; give one of them")
    return {**serve, "speculative_config": table_of(speculative)}


def _price(deployment: "Deployment", batch: "Batch") -> dict[str, Any]:
    """Show the step, and return it for a JSON file."""
    deployment.check_step(batch)
    steps = [timer.step_cost(batch) for timer in deployment.timers()]
    _show(deployment, batch, steps)
    return content(deployment, batch, steps)


def _show(deployment: "Deployment", batch: "Batch", steps: "Sequence[StepCost]") -> None:
    """Print what one rank of each pipeline stage does for *batch*, and the step's totals."""
    screen, ranks = console(), deployment.serve.data_parallel_size
    where = f"{deployment.serve.gpus} x {deployment.gpu.name}" + (", each" if ranks > 1 else "")
    screen.print(f"\n[bold]{deployment.scenario.model}[/] on {f'{ranks} ranks of ' if ranks > 1 else ''}{where}:"
                 f" {len(batch.contexts)} decodes, {len(batch.chunks)} prompt chunks, {batch.tokens} tokens")
    for stage, step in enumerate(steps):
        if len(steps) > 1:
            screen.print(f"\nstage {stage} of {len(steps)}")
        screen.print(_kernels(step))
        screen.print(_totals(deployment, batch, step))


def _kernels(step: "StepCost") -> Table:
    rows = Table.of(*_COLUMNS, hide=_HIDE)
    for span, runs in counted(step).items():
        rows.add_row(*_row(span, runs, step.seconds))
    return rows


def _row(span: "KernelCost", runs: int, total: float) -> tuple[str, ...]:
    share = runs * span.seconds / total
    waves = (f"{span.waves:.2f}", f"{span.idle:.0%}") if span.waves else ("", "")
    hidden = span.hidden and not span.seconds
    return (span.label, span.family, str(span.shape), str(runs), f"{1e6 * span.lasts:.2f}",
            "hidden" if hidden else f"{1e6 * runs * span.seconds:.1f}", f"{share:.1%}", span.bound, *waves,
            span.launch, "" if isnan(span.roofline_ratio) else f"{span.roofline_ratio:.2f}",
            "" if hidden else _interval(span.low, span.high, 1e6), span.source)


def _interval(low: float, high: float, scale: float) -> str:
    return "" if isnan(low) else f"{scale * low:.4g}-{scale * high:.4g}"


def _totals(deployment: "Deployment", batch: "Batch", step: "StepCost") -> str:
    """GPU and host time, and what share of the peaks the step reaches."""
    known = totals(deployment, batch, step)
    between = _interval(step.low, step.high, 1e3)
    likely = f" ({between} at 90 %)" if between else ""
    outside = known["extrapolated_share"]
    return (f"GPU {1e3 * step.seconds:.3f} ms{likely}, launched as {step.launch};"
            f" host {1e3 * known['host_input_seconds']:.3f} ms"
            f" for inputs and {1e3 * step.launch_seconds:.3f} ms for launches; MFU {known['mfu_share']:.1%},"
            f" MBU {known['mbu_share']:.1%}; {known['joules_per_gpu']:.2f} J a GPU"
            f"{' (power estimated)' * (known['power_basis'] == 'estimated')}"
            + (f"; {outside:.1%} of GPU time extrapolated" if outside else "") + "\n")


def counted(step: "StepCost") -> "dict[KernelCost, int]":
    """The kernels of *step*, equal ones once, with how often each runs."""
    merged: dict[KernelCost, int] = {}
    for span, runs in step.counted():
        merged[span] = merged.get(span, 0) + runs
    return merged


def totals(deployment: "Deployment", batch: "Batch", step: "StepCost") -> dict[str, Any]:
    """GPU and host time, and what share of the peaks the step reaches."""
    gpu = deployment.gpu
    peak = gpu.flops[deployment.serve.precision.activations.element]
    return {"gpu_seconds": step.seconds, "gpu_seconds_low": step.low, "gpu_seconds_high": step.high,
            "launch": step.launch, "host_input_seconds": deployment.host.worker.preparing(batch.sequences),
            "host_launch_seconds": step.launch_seconds, "mfu_share": step.flops / step.seconds / peak,
            "mbu_share": step.bytes / step.seconds / gpu.bandwidth,
            "joules_per_gpu": step.joules + gpu.power.idle * step.seconds, "power_basis": gpu.power.basis,
            "extrapolated_share": step.extrapolated / step.seconds}


def content(deployment: "Deployment", batch: "Batch", steps: "Sequence[StepCost]") -> dict[str, Any]:
    """The *steps* of one rank of each pipeline stage for *batch*, for a JSON file."""
    return {"model": deployment.scenario.model, "gpu": deployment.gpu.name, "gpus": deployment.serve.gpus,
            "data_parallel_size": deployment.serve.data_parallel_size,
            "decodes": len(batch.contexts), "prompt_chunks": len(batch.chunks), "tokens": batch.tokens,
            "stages": [{**totals(deployment, batch, step), "kernels": [
                _kernel(span, runs, step.seconds) for span, runs in counted(step).items()]} for step in steps]}


def _kernel(span: "KernelCost", runs: int, total: float) -> dict[str, Any]:
    seconds = runs * span.seconds
    return {"kernel": span.label, "family": span.family, "shape": str(span.shape), "runs": runs,
            "seconds_each": span.lasts, "seconds_all": seconds, "hidden": bool(span.hidden),
            "share": seconds / total, "bound": span.bound, "waves": span.waves or None,
            "idle_share": span.idle if span.waves else None, "launch": span.launch,
            "eta": None if isnan(span.roofline_ratio) else span.roofline_ratio,
            "seconds_low": span.low, "seconds_high": span.high, "source": span.source}


_KIB = 1024


def collectives(
    gpu: GpuName = None, system: SystemName = None, nodes: Nodes = None,
    kinds: Annotated[str, typer.Option(help="kinds of collectives, with commas between")] = "all_reduce",
    ranks: Annotated[str, typer.Option(help="how many GPUs take part, with commas between")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="bytes, with commas between; by default 1 KiB to 1 GiB, each four"
                                       " times the one before")] = "",
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Price collectives by kind, size and GPU count: time, bus bandwidth and joules, as nccl-tests count them."""
    from ksim.scenario.messages import messages

    priced = list(messages(gpu, system, nodes, words_of(kinds), [int(word) for word in _numbers("--ranks", ranks)],
                           _numbers("--sizes", sizes) or [float(_KIB * 4**power) for power in range(11)]))
    console().print(_table(priced))
    write_json(json_file, {"messages": [_row_of_collective(message) for message in priced]})


def _numbers(flag: str, text: str) -> list[float]:
    from ksim.foundation.errors import ConfigError
    from ksim.foundation.units import quantity

    try:
        return [quantity(word) for word in words_of(text)]
    except ValueError as error:
        raise ConfigError(flag, str(error)) from None


def _table(priced: "list[Message]") -> Table:
    from ksim.views.wording import measure, number

    rows = Table.of("kind", ">GPUs", ">size", "algorithm", ">us", ">GB/s", ">mJ", ">idle", ">pJ/bit",
                    hide=("pJ/bit", "idle", "mJ", "algorithm"),
                    title="bus bandwidth as in nccl-tests; joules of all GPUs, and the share of idle power in them")
    for message in priced:
        rows.add_row(message.kind, str(message.ranks), measure(message.bytes, "B"), message.span.launch,
                     number(1e6 * message.seconds), number(1e-9 * message.bus_bandwidth), number(1e3 * message.joules),
                     f"{message.idle_joules / message.joules:.0%}", number(1e12 * message.joules_per_bit))
    return rows


def routing(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="what vLLM returned as routed_experts (.npy, .npz, JSON"
                                        " or JSON lines), or a table of counts with a row for each layer (CSV, JSON,"
                                        " .npy)")],
    model: ModelName,
    ranks: Annotated[int, typer.Option(help="GPUs, or groups of them, that share the experts")] = 8,
    output: Annotated[list[Path] | None, typer.Option("-o", "--output", metavar="FILE", help="write the shares that"
                      " routing = {name = \"measured\", path = FILE} takes (.json, .csv), or draw mean and fullest"
                      " rank (.png); may be given for each")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Show how uneven the choice of experts makes ranks, and turn it into the file that a scenario's routing takes."""
    from ksim.scenario.models import model_of
    from ksim.scenario.routed import read_routed, unevenness

    files = output or []
    if strange := [file for file in files if file.suffix not in (".json", ".csv", ".png")]:
        raise ConfigError("-o", f"{strange[0]}: shares go to .json or .csv, and a figure to .png")
    routed = read_routed(log, model_of(model))
    uneven = unevenness(routed, ranks)
    for file in files:
        try:
            _write_routed(file, routed, uneven)
        except OSError as error:
            raise ConfigError("-o", f"{file}: cannot be written: {error.strerror or error}") from error
    console().print(_uneven_table(routed, uneven))
    for file in files:
        console().print(f"wrote {file}", markup=False, highlight=False)
    write_json(json_file, _of_routed(routed, uneven))


def _write_routed(file: Path, routed: "RoutedExperts", uneven: "Unevenness") -> None:
    if file.suffix == ".png":
        from ksim.scenario.routed import BATCHES
        from ksim.views.figures.studies import expert_load_chart

        title = f"{routed.model.name}: rows of {uneven.ranks} ranks of experts"
        expert_load_chart(title, routed.layers, uneven.fullest, uneven.balanced_fullest, BATCHES,
                          uneven.by_batch).save(file)
    elif file.suffix == ".csv":
        file.write_text("".join(",".join(f"{count:g}" if isinstance(count, float) else str(count) for count in row)
                                + "\n" for row in routed.table()), encoding="utf-8")
    else:
        file.write_text(json.dumps(routed.table()) + "\n", encoding="utf-8")


def _uneven_table(routed: "RoutedExperts", uneven: "Unevenness") -> Table:
    from ksim.scenario.routed import BATCHES

    experts, decoder = routed.counts.shape[1], routed.model.decoder
    source = "counts" if routed.tokens is None else f"{routed.tokens:,} tokens"
    rows = Table.of("fullest rank over the mean", ">mean of layers", ">worst layer",
                    title=f"{source} in {len(routed.layers)} layers of {experts} experts, {decoder.top_k} a token, on"
                          f" {uneven.ranks} ranks; balancedness {uneven.balancedness:.3f}, entropy of experts"
                          f" {uneven.entropy:.1%} of the most, correlation from layer to layer"
                          f" {uneven.correlation:.2f}")
    placements = {"of all tokens, experts in their order": uneven.fullest,
                  "of all tokens, placed by EPLB": uneven.balanced_fullest}
    for name, fullest in placements.items():
        if fullest is not None:
            rows.add_row(name, f"{fullest.mean():.3f}", f"{fullest.max():.3f}")
    for tokens, ratio in [*zip(BATCHES, uneven.by_batch.tolist(), strict=True)][::3]:
        rows.add_row(f"of a batch of {tokens:,} token{'s' * (tokens > 1)}, experts in their order", f"{ratio:.3f}", "")
    return rows


def _of_routed(routed: "RoutedExperts", uneven: "Unevenness") -> dict[str, Any]:
    from ksim.scenario.routed import BATCHES

    balanced = uneven.balanced_fullest
    return {"model": routed.model.name, "tokens": routed.tokens, "ranks": uneven.ranks, "layers": [*routed.layers],
            "fullest_over_mean": uneven.fullest.tolist(),
            "balanced_fullest_over_mean": None if balanced is None else balanced.tolist(),
            "by_batch": {str(tokens): ratio for tokens, ratio in zip(BATCHES, uneven.by_batch.tolist(), strict=True)},
            "balancedness": uneven.balancedness, "entropy": uneven.entropy, "correlation": uneven.correlation}


def _row_of_collective(message: "Message") -> dict[str, float | str]:
    return {"kind": message.kind, "gpus": message.ranks, "bytes": message.bytes, "launch": message.span.launch,
            "seconds": message.seconds, "bus_bandwidth": message.bus_bandwidth, "joules": message.joules,
            "idle_joules": message.idle_joules, "joules_per_bit": message.joules_per_bit}


#: The steps that are priced if none is given.
_DECODE, _PREFILL = "64x1024", "2048+0"


@with_step_flags
def roofline(
    model: ModelName, gpu: GpuName = None, system: SystemName = None,
    decode: Annotated[str, typer.Option(help="sequences that decode: COUNTxCONTEXT, with commas between; without"
                                        f" --prefill either, two steps: {_DECODE} and {_PREFILL}")] = "",
    prefill: Annotated[str, typer.Option(help="prompt chunks: NEW+CONTEXT, with commas between")] = "",
    oracle: OracleName = None,
    gpus: Annotated[str, typer.Option(help="GPUs to compare it with, with commas between; by default all of the"
                                      " catalogue")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="where to draw roofline.png and"
                                         " eta_map.png")] = Path("roofline"),
    json_file: JsonInFolder = None, wide: Wide = False,
    serve: dict[str, Any] | None = None,
) -> None:
    """Draw a step's kernels under the roofline, and which families are equally far from it on every GPU."""
    from ksim.cli.roofline_output import RooflineReport, check, content, save, show
    from ksim.scenario.defaults import Deployment
    from ksim.scenario.portability import kernel_points, survey

    batches = _batches(decode, prefill)
    scenario = scenario_of("roofline", model=model, gpu=gpu, system=system, oracle=oracle, serve=serve)
    deployment = Deployment.of(scenario)
    for batch in batches.values():
        deployment.check_step(batch)
    others = _others(scenario, str(deployment.scenario.gpu), gpus)
    written = None if json_file == STDOUT else json_file
    check(output, written)
    steps = {name: kernel_points(deployment, batch) for name, batch in batches.items()}
    report = RooflineReport(deployment, batches, steps, survey(others, batches))
    figures = save(report, output, written)
    if json_file == STDOUT:
        write_json(json_file, content(report))
    show(report, figures)


def _batches(decode: str, prefill: str) -> dict[str, "Batch"]:
    """The steps to price, by name."""
    if not decode and not prefill:
        return {"decode": batch_of(_DECODE, ""), "prefill": batch_of("", _PREFILL)}
    name = "mixed" if decode and prefill else "decode" if decode else "prefill"
    return {name: batch_of(decode, prefill)}


def _others(scenario: "Scenario", gpu: str, names: str) -> Mapping[str, "Scenario"]:
    """*scenario*, which is on *gpu*, and the same on each GPU that *names* lists; raises UnknownName."""
    from ksim.foundation import catalog
    from ksim.scenario.hardware import gpu_of
    from ksim.scenario.portability import moved_to

    listed = words_of(names) or catalog.entries("gpus")
    for name in listed:
        gpu_of(name)
    labels = {Path(name).stem if catalog.is_file(name) else name: name for name in [gpu, *listed]}
    return {label: scenario if name == gpu else moved_to(scenario, name) for label, name in labels.items()}
