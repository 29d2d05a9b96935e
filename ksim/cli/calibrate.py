"""`ksim sweep-kernels` and `ksim calibrate`: choose kernels to measure on a GPU, and fit its profile to them."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import words_of
from ksim.cli.output import JsonFile, Wide, console, say, status, write_json
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.calibration.calibrate import CalibratedFamily, Calibration
    from ksim.calibration.points import SweepPlan
    from ksim.specs.hardware import Gpu

#: Seconds of GPU time that a sweep takes by default.
BUDGET = 300.0


def sweep_kernels(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="POINTS", help="file to write: .csv or .parquet")],
    gpu: Annotated[str, typer.Option(help="catalogue name or path of a GPU; by default this machine's")] = "",
    families: Annotated[list[str] | None, typer.Option(help="kernel families, with commas between; may be repeated; by"
                                                       " default all")] = None,
    model: Annotated[list[str] | None, typer.Option(help="catalogue name or config.json of a model whose layers are"
                                                    " measured too; may be repeated")] = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="GPU time that the sweep may take")] = BUDGET,
    run: Annotated[Path | None, typer.Option("--run", metavar="FOLDER", help="measure the points right away on this"
                                             " machine's GPU, into this folder")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Write the list of kernels to measure on a GPU; `ksim calibrate` makes its profile from the measurements."""
    from ksim.calibration.points import plan
    from ksim.calibration.reading.sweep import write_points
    from ksim.simulation.hardware import gpu_of
    from ksim.simulation.models import model_of

    target = gpu_of(gpu or _this_gpu())
    wanted = [name for group in families or [] for name in words_of(group)]
    planned = plan(target, wanted, [model_of(name) for name in model or []], budget)
    write_points(planned.points, output)
    console().print(_planned_table(planned, target))
    write_json(json_file, _planned_content(planned, target, output))
    if run is None:
        say(f"written to {output}; where the GPU is, with vLLM installed: "
              f"python -m ksim.calibration.runner {output} -o FOLDER")
    else:
        _measure(planned, run)


def _this_gpu() -> str:
    """The catalogue's name of this machine's GPU; raises ConfigError where it has none, or one that is unknown."""
    from ksim.calibration.names import gpu_name, nvidia_smi
    from ksim.foundation.errors import ConfigError

    device = nvidia_smi("name")
    name = gpu_name(device)
    if name is None:
        why = f"is {device!r} here, which the catalogue lacks" if device else "is needed: this machine has none to ask"
        raise ConfigError("--gpu", f"{why}; name one of ksim list gpus, or the path of a file like theirs")
    return name


def _planned_table(planned: "SweepPlan", gpu: "Gpu") -> Table:
    rows = Table.of("family", ">to calibrate", ">to check", ">expected s", title=f"points for {gpu.name}")
    for name, points, checks, seconds in planned.families():
        rows.add_row(name, f"{points:,}", f"{checks:,}", f"{seconds:.1f}")
    rows.add_section()
    rows.add_row("all", f"{sum(points for _, points, _, _ in planned.families()):,}",
                 f"{sum(checks for _, _, checks, _ in planned.families()):,}", f"{planned.seconds:.1f}")
    return rows


def _planned_content(planned: "SweepPlan", gpu: "Gpu", output: Path) -> dict[str, Any]:
    return {"gpu": gpu.name, "points_file": str(output), "seconds": planned.seconds,
            "families": [{"family": name, "points": points, "check_points": checks, "seconds": seconds}
                         for name, points, checks, seconds in planned.families()]}


def _measure(planned: "SweepPlan", folder: Path) -> None:
    from ksim.calibration.runner.sweep import run
    from ksim.calibration.runner.torch_device import TorchDevice

    run(planned.points, folder, TorchDevice())


def calibrate(
    sweep: Annotated[list[Path], typer.Argument(metavar="SWEEP...", help="files or folders of measured kernels: sweeps,"
                                                " AIConfigurator's tables, logs of nccl-tests")],
    gpu: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU that was measured: catalogue name or path; by"
                                     " default the one that the files name")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="PROFILE", help="file to write; by default"
                                                " the GPU's name with .npz, in this folder")] = None,
    json_file: JsonFile = None, wide: Wide = False,
) -> None:
    """Fit the share of its bounds that a GPU reaches, for the oracle `measured`, and report the errors of the fit."""
    from ksim.calibration.calibrate import ENDING, check_writable, save
    from ksim.calibration.calibrate import calibrate as fit
    from ksim.calibration.ingest import digests, ingest

    screen = console()
    with status("reading") as line:
        ingested = ingest(sweep, gpu)
        path = output or Path(f"{ingested.called}{ENDING}")
        check_writable(path)
        fitted = fit(ingested.measured, ingested.gpu, lambda name: line.update(f"fitting {name}"))
    screen.print(_families(fitted.parts, fitted.gpu.name))
    say("errors are means over points held back group by group; enough: so many points would do nearly as well")
    if fitted.left:
        screen.print(_left(fitted))
    for remark in (*ingested.remarks, *fitted.remarks):
        say(f"note: {remark}")
    words = ["ksim", "calibrate", *map(str, sweep), *(("--gpu", gpu) if gpu else ()), "-o", str(path)]
    write_json(json_file, _content(fitted, path))
    save(path, fitted, shlex.join(words), digests(ingested.measured))
    say(f"written to {path}; use it with --oracle {path}, or in a scenario: [oracle] with name = \"measured\" and"
          f" path = \"{path}\"")


def _content(fitted: "Calibration", path: Path) -> dict[str, Any]:
    """The errors of the fit, for a JSON file; errors and biases are shares of the measured time."""
    families = [{"family": part.name, "points": part.points, "error_share": part.error, "bias_share": part.bias,
                 "enough_points": part.enough,
                 "curve": [{"points": points, "error_share": error} for points, error in part.curve],
                 "checks": [{"tag": tag, "points": points, "error_share": error} for tag, points, error in part.checks]}
                for part in fitted.parts]
    return {"gpu": fitted.gpu.name, "profile": str(path), "families": families,
            "left_out": [{"rows": left.rows, "reason": left.reason} for left in fitted.left],
            "remarks": list(fitted.remarks)}


def _families(parts: Sequence["CalibratedFamily"], gpu: str) -> Table:
    rows = Table.of("family", ">points", ">error %", ">bias %", "error % with fewer points", ">enough",
                    "error % at points that taught nothing", title=f"calibration of {gpu}",
                    hide=("error % with fewer points", "error % at points that taught nothing", "enough"))
    for part in parts:
        curve = ", ".join(f"{points:,}: {100 * error:.1f}" for points, error in part.curve)
        checks = ", ".join(f"{tag}: {100 * error:.1f} of {points:,}" for tag, points, error in part.checks)
        rows.add_row(part.name, f"{part.points:,}", f"{100 * part.error:.2f}", f"{100 * part.bias:+.2f}", curve,
                     f"{part.enough:,}", checks)
    return rows


def _left(fitted: "Calibration") -> Table:
    rows = Table.of(">rows", "left out", title="rows left out")
    for left in fitted.left:
        rows.add_row(f"{left.rows:,}", left.reason)
    return rows
