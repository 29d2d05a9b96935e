"""`ksim roofline`: the kernels of a step under a GPU's roofline, and whether their eta carries over to other GPUs."""

from collections.abc import Mapping
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
    with_serve_flags,
    words_of,
)
from ksim.cli.output import STDOUT, JsonInFolder, Wide, write_json

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.simulation.scenario import Scenario

#: The steps that are priced if none is given.
_DECODE, _PREFILL = "64x1024", "2048+0"


@with_serve_flags
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
    from ksim.simulation.deployment import Deployment
    from ksim.simulation.portability import kernel_points, survey

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
    from ksim.simulation.hardware import gpu_of
    from ksim.simulation.portability import moved_to

    listed = words_of(names) or catalog.entries("gpus")
    for name in listed:
        gpu_of(name)
    labels = {Path(name).stem if catalog.is_file(name) else name: name for name in [gpu, *listed]}
    return {label: scenario if name == gpu else moved_to(scenario, name) for label, name in labels.items()}
