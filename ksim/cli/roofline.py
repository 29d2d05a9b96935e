"""`ksim roofline`: the kernels of a step under a GPU's roof, and whether their eta carries over to other GPUs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import given, oracle_of, with_serve_flags

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.simulation.scenario import Scenario

#: What is looked at where nothing is asked for.
_DECODE, _PREFILL = "64x1024", "2048+0"


@with_serve_flags
def roofline(
    model: Annotated[str, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")],
    gpu: Annotated[str | None, typer.Option(help="GPU, in its usual system")] = None,
    system: Annotated[str | None, typer.Option(help="system, in place of a GPU")] = None,
    decode: Annotated[str, typer.Option(help="sequences that decode: COUNTxCONTEXT, with commas between; without"
                                        f" --prefill either, two steps: {_DECODE} and {_PREFILL}")] = "",
    prefill: Annotated[str, typer.Option(help="prompt chunks: NEW+CONTEXT, with commas between")] = "",
    oracle: Annotated[str | None, typer.Option(help="latency oracle; package.module:Class for your own, FILE.npz for a"
                                               " profile; by default measured where one ships, else learned")] = None,
    gpus: Annotated[str, typer.Option(help="GPUs to compare it with, with commas between; by default all of the"
                                      " catalogue")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="where to draw roofline.png and"
                                         " eta_map.png")] = Path("roofline"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the tables here")] = None,
    serve: dict[str, Any] | None = None,
) -> None:
    """Draw one step's kernels under the roofline, and which families are as far from it on every GPU."""
    from ksim.cli.roofline_files import check, save
    from ksim.cli.roofline_report import Report, show
    from ksim.cli.screen import console
    from ksim.simulation.assembly import Site
    from ksim.simulation.portability import points, survey
    from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
    from ksim.simulation.sizing import check_step

    batches = _batches(decode, prefill)
    table = {"model": model, "gpu": gpu, "system": system, "oracle": oracle_of(oracle), "serve": serve or {},
             "workload": ANY_WORKLOAD}
    scenario = Scenario.of(given(table), "roofline")
    site = Site.of(scenario)
    for batch in batches.values():
        check_step(site.model, site.shards, site.gpu, site.scenario.serve, site.system, batch)
    others = _others(scenario, str(site.scenario.gpu), gpus)
    check(output, json_file)
    steps = {name: points(site, batch) for name, batch in batches.items()}
    report = Report(site, batches, steps, survey(others, batches))
    figures, screen = save(report, output, json_file), console()
    show(screen, report)
    screen.print(f"drawn into {' and '.join(map(str, figures))}"
                 + ("" if report.compares else "; a map of eta needs a second GPU that the step can be priced on"),
                 markup=False)


def _batches(decode: str, prefill: str) -> dict[str, "Batch"]:
    """The steps to look at, by what they are called; raises ConfigError for a text that says none."""
    from ksim.flow.batch import Batch
    from ksim.foundation.errors import ConfigError

    if not decode and not prefill:
        return {"decode": Batch.parse(_DECODE), "prefill": Batch.parse("", _PREFILL)}
    name = "mixed" if decode and prefill else "decode" if decode else "prefill"
    try:
        return {name: Batch.parse(decode, prefill)}
    except ValueError as error:
        raise ConfigError("--decode, --prefill", str(error)) from None


def _others(scenario: "Scenario", gpu: str, names: str) -> Mapping[str, "Scenario"]:
    """*scenario*, which is on *gpu*, and the same on each GPU that *names* lists; raises UnknownName."""
    from ksim.foundation import catalog
    from ksim.simulation.lookup import gpu_of
    from ksim.simulation.portability import on

    listed = [name.strip() for name in names.split(",") if name.strip()] or catalog.entries("gpus")
    for name in listed:
        gpu_of(name)
    short = {Path(name).stem if catalog.is_file(name) else name: name for name in [gpu, *listed]}
    return {label: scenario if name == gpu else on(scenario, name) for label, name in short.items()}
