"""`ksim sweep-kernels`: which kernels to measure on a GPU, and measuring them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.calibration.points import SweepPlan
    from ksim.specs.hardware import Gpu

BUDGET = 300.0


def sweep_kernels(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="POINTS", help="file to write, .csv or .parquet")],
    gpu: Annotated[str, typer.Option(help="catalogue name or path of a GPU; by default that of this machine")] = "",
    families: Annotated[list[str] | None, typer.Option(help="kernel family; repeat or put commas between; by default "
                                                       "all")] = None,
    model: Annotated[list[str] | None, typer.Option(help="catalogue name or config.json of a model whose layers to "
                                                    "measure too; may be repeated")] = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="GPU time that the sweep may take")] = BUDGET,
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="measure the points at once, on this "
                                             "machine's GPU, into this folder")] = None,
) -> None:
    """Write the list of kernels to measure on a GPU, from which `ksim calibrate` makes its profile."""
    from ksim.calibration.points import plan
    from ksim.calibration.reading.sweep import write_points
    from ksim.cli.screen import console
    from ksim.simulation.lookup import gpu_of, model_of

    target = gpu_of(gpu or _own())
    wanted = [name.strip() for group in families or [] for name in group.split(",") if name.strip()]
    planned = plan(target, wanted, [model_of(name) for name in model or []], budget)
    write_points(planned.points, output)
    console().print(_table(planned, target))
    if run is None:
        print(f"written to {output}; where the GPU is, with vLLM installed: "
              f"python -m ksim.calibration.runner {output} -o FOLDER")
    else:
        _measure(planned, run)


def _own() -> str:
    """The catalogue's name of the GPU of this machine; raises ConfigError where there is none, or none it knows."""
    from ksim.calibration.names import gpu_name, nvidia_smi
    from ksim.foundation.errors import ConfigError

    device = nvidia_smi("name")
    name = gpu_name(device)
    if name is None:
        why = f"is {device!r} here, which the catalogue lacks" if device else "is needed: this machine has none to ask"
        raise ConfigError("--gpu", f"{why}; name one of ksim list gpus, or the path of a file like theirs")
    return name


def _table(planned: "SweepPlan", gpu: "Gpu") -> "Table":
    from ksim.cli.screen import table

    rows = table("family", ">to calibrate", ">to check", ">expected s", title=f"points for {gpu.name}")
    for name, points, checks, seconds in planned.families():
        rows.add_row(name, f"{points:,}", f"{checks:,}", f"{seconds:.1f}")
    rows.add_section()
    rows.add_row("all", f"{sum(points for _, points, _, _ in planned.families()):,}",
                 f"{sum(checks for _, _, checks, _ in planned.families()):,}", f"{planned.seconds:.1f}")
    return rows


def _measure(planned: "SweepPlan", folder: Path) -> None:
    from ksim.calibration.runner.sweep import run
    from ksim.calibration.runner.torch_device import TorchDevice

    run(planned.points, folder, TorchDevice())
