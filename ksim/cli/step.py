"""`ksim step`: one step, priced kernel by kernel."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import (
    GpuName,
    ModelName,
    OracleName,
    SystemName,
    batch_of,
    scenario_of,
    with_adapters,
    with_serve_flags,
    words_of,
)
from ksim.cli.output import JsonFile, Wide, console, write_json
from ksim.cli.step_json import content, counted, totals
from ksim.foundation.errors import ConfigError
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.flow.kernels import KernelCost
    from ksim.flow.steps import StepCost
    from ksim.simulation.deployment import Deployment

_COLUMNS = ("kernel", "family", "shape", ">runs", ">us each", ">us all", ">share", "bound", ">waves", ">idle", "launch",
            ">eta", ">90 % of us", "source")
_HIDE = ("source", "launch", "idle", "waves", "90 % of us", "eta", "family", "bound", "us each", "shape", "runs")


@with_serve_flags
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
    from ksim.simulation.deployment import Deployment

    serve = _speculating(serve or {}, speculative)
    batch = with_adapters(batch_of(decode, prefill), adapters, serve)
    scenario = scenario_of("step", model=model, gpu=gpu, system=system, oracle=oracle, serve=serve)
    deployment = Deployment.of(scenario)
    batch = _seeing(deployment, batch, images)
    if config := deployment.serve.speculative_config:
        from ksim.cli.step_speculation import compare
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

    from ksim.simulation.vision import vision_of
    from ksim.workload.images import image_size

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
    from ksim.cli.step_speculation import table_of

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
    return (span.label, span.family, str(span.shape), str(runs), f"{1e6 * span.lasts:.2f}",
            "hidden" if span.hidden else f"{1e6 * runs * span.seconds:.1f}", f"{share:.1%}", span.bound, *waves,
            span.launch, "" if isnan(span.roofline_ratio) else f"{span.roofline_ratio:.2f}",
            "" if span.hidden else _interval(span.low, span.high, 1e6), span.source)


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
