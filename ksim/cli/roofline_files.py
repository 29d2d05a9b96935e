"""The figures and the JSON file that `ksim roofline` writes: all of them, or none."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ksim.cli.roofline_report import Report, family_row, kernel_row
from ksim.foundation.errors import ConfigError
from ksim.foundation.hidden_directory import hidden_directory
from ksim.foundation.units import DType
from ksim.simulation.portability import LARGE, WIDE, ZONES, Point


def check(folder: Path, json_file: Path | None) -> None:
    """Raise ConfigError unless *folder* can take figures and *json_file* can be written: worth knowing before."""
    for target, place in ((folder, folder), *([(json_file, json_file.parent)] if json_file else [])):
        nearest = next(path for path in (place.resolve(), *place.resolve().parents) if path.exists())
        if not nearest.is_dir():
            raise ConfigError(str(target), f"cannot be written: {nearest} is not a directory")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise ConfigError(str(target), f"cannot be written: no permission to write in {nearest}")
    if json_file is not None and json_file.is_dir():
        raise ConfigError(str(json_file), "cannot be written: it is a directory")


def save(report: Report, folder: Path, json_file: Path | None) -> list[Path]:
    """Draw into *folder*, write *json_file*, return both figures, or the one that there is; raises ConfigError."""
    with ExitStack() as stack:
        hidden = stack.enter_context(_written_at_once(folder))
        names = _draw(report, hidden)
        moves = [(hidden / name, folder / name) for name in names]
        if json_file is not None:
            written = stack.enter_context(_written_at_once(json_file.parent)) / json_file.name
            written.write_text(json.dumps(content(report), indent=2) + "\n", encoding="utf-8")
            moves.append((written, json_file))
        for source, target in moves:
            source.replace(target)
    return [folder / name for name in names]


def content(report: Report) -> dict[str, Any]:
    """All of *report*, as JSON has it."""
    scenario, steps = report.site.scenario, {}
    for step, points in report.steps.items():
        batch, total = report.batches[step], sum(point.seconds for point in points)
        steps[step] = {"contexts": list(batch.contexts), "chunks": [list(chunk) for chunk in batch.chunks],
                       "seconds": total, "kernels": [kernel_row(point, total) for point in points]}
    return {"model": scenario.model, "gpu": scenario.gpu, "system": scenario.system,
            "oracle": scenario.oracle and scenario.oracle.name, "steps": steps,
            "families": [family_row(family) for family in report.survey.families],
            "thresholds": {"eta": LARGE, "spread": WIDE}, "unpriced": dict(report.survey.unpriced)}


@contextmanager
def _written_at_once(folder: Path) -> Iterator[Path]:
    """A directory inside *folder*, made if need be, to write in; what is left in it is gone afterwards."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden_directory(folder / "roofline") as hidden:
            yield hidden
    except OSError as error:
        raise ConfigError(str(folder), f"cannot be written: {error.strerror or error}") from error
    finally:
        for place in made:
            with suppress(OSError):  # what has files in it by now stays
                place.rmdir()


def _draw(report: Report, folder: Path) -> list[str]:
    """Draw the roofline, and the map of eta where there are GPUs to compare; return the names of the files."""
    from ksim.report.plots.eta_map import eta_figure
    from ksim.report.plots.roofline import step_roofline_figure
    from ksim.report.plots.roofs import Roof
    from ksim.report.plots.style import looks, write

    gpu, drawn = report.site.gpu, {step: _placed(points) for step, points in report.steps.items()}
    formats = dict.fromkeys(point.dtype for points in drawn.values() for point in points)
    roofs = [Roof(str(dtype), gpu.flops[dtype], gpu.bandwidth) for dtype in formats if isinstance(dtype, DType)]
    with looks():
        write(step_roofline_figure(f"Roofline: {report.title}", roofs, _panels(report, drawn)), folder / "roofline.png")
        if not report.compares:
            return ["roofline.png"]
        title = f"Does eta carry over? {report.model} on {len(report.survey.gpus)} GPUs"
        write(eta_figure(title, report.survey.gpus, *_map(report)), folder / "eta_map.png")
    return ["roofline.png", "eta_map.png"]


def _placed(points: Any) -> list[Point]:
    """Those that have a place under a roof: what has no FLOP, or no bytes, has not."""
    return [point for point in points if point.span.flops and point.span.bytes]


def _panels(report: Report, drawn: dict[str, list[Point]]) -> list[Any]:
    from ksim.report.plots.roofline import Panel
    from ksim.report.plots.roofs import Mark

    panels = []
    for step, points in drawn.items():
        marks = [Mark(point.span.label, point.span.flops / point.span.bytes, point.span.flops / point.span.seconds,
                      point.seconds, point.span.bound, point.span.flops / point.span.high,
                      point.span.flops / point.span.low) for point in points]
        total = sum(point.seconds for point in report.steps[step])
        panels.append(Panel(report.heading(step), marks, sum(point.seconds for point in points) / total))
    return panels


def _map(report: Report) -> tuple[dict[str, list[Any]], list[Any]]:
    """The families of each step, and the zones."""
    from ksim.report.plots.eta_map import FamilyMark, ZoneArea

    marks: dict[str, list[Any]] = {report.heading(step): [] for step in report.steps}
    for family in report.survey.families:
        etas = family.etas.values()
        marks[report.heading(family.step)].append(
            FamilyMark(family.name, family.eta, min(etas), max(etas), family.share))
    return marks, [ZoneArea(zone.name, zone.eta, zone.spread) for zone in ZONES]
