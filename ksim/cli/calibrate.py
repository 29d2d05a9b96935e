"""`ksim calibrate`: from measured kernels of a GPU to its profile."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ksim.calibration.calibrate import CalibratedFamily, Calibration


def calibrate(
    sweep: Annotated[list[Path], typer.Argument(metavar="SWEEP...", help="files or folders of measured kernels: sweeps,"
                                                " AIConfigurator's tables, logs of nccl-tests")],
    gpu: Annotated[str, typer.Option(metavar="NAME|FILE", help="GPU that was measured: catalogue name or path; by"
                                     " default what the files say")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="PROFILE", help="file to write; by default"
                                                " the GPU's name with .npz, in this folder")] = None,
) -> None:
    """Fit what share of its bounds a GPU reaches, for the oracle `measured`, and say how far off that is."""
    from ksim.calibration.calibrate import ENDING, check_writable, save
    from ksim.calibration.calibrate import calibrate as fit
    from ksim.calibration.ingest import digests, ingest
    from ksim.cli.screen import console

    screen = console()
    with screen.status("reading") as status:
        ingested = ingest(sweep, gpu)
        path = output or Path(f"{ingested.called}{ENDING}")
        check_writable(path)
        fitted = fit(ingested.measured, ingested.gpu, lambda name: status.update(f"fitting {name}"))
    screen.print(_families(fitted.parts, fitted.gpu.name))
    print("errors are means over points held back group by group; enough: so many points do nearly as well")
    if fitted.left:
        screen.print(_left(fitted))
    for remark in (*ingested.remarks, *fitted.remarks):
        print(f"note: {remark}")
    words = ["ksim", "calibrate", *map(str, sweep), *(("--gpu", gpu) if gpu else ()), "-o", str(path)]
    save(path, fitted, shlex.join(words), digests(ingested.measured))
    print(f"written to {path}; use it with --oracle {path}, or in a scenario: [oracle] with name = \"measured\" and"
          f" path = \"{path}\"")


def _families(parts: Sequence["CalibratedFamily"], gpu: str) -> "Table":
    from ksim.cli.screen import table

    rows = table("family", ">points", ">error %", ">bias %", "error % with fewer points", ">enough",
                 "error % at points that taught nothing", title=f"calibration of {gpu}")
    for part in parts:
        curve = ", ".join(f"{points:,}: {100 * error:.1f}" for points, error in part.curve)
        checks = ", ".join(f"{tag}: {100 * error:.1f} of {points:,}" for tag, points, error in part.checks)
        rows.add_row(part.name, f"{part.points:,}", f"{100 * part.error:.2f}", f"{100 * part.bias:+.2f}", curve,
                     f"{part.enough:,}", checks)
    return rows


def _left(fitted: "Calibration") -> "Table":
    from ksim.cli.screen import table

    rows = table(">rows", "left out", title="rows left out")
    for left in fitted.left:
        rows.add_row(f"{left.rows:,}", left.reason)
    return rows
