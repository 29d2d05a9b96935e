"""What `ksim roofline` shows and writes: tables, figures and a JSON file."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import isnan
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.cli.flags import as_json, console
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import hidden_directory
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment
from ksim.scenario.portability import LARGE, WIDE, ZONES, FamilyEtas, RooflinePoint, Survey
from ksim.views.tables import Table


@frozen
class RooflineReport:
    """The steps of an engine of `deployment`, kernel by kernel, and their families on several GPUs."""

    deployment: Deployment
    batches: Mapping[str, Batch]
    steps: Mapping[str, Sequence[RooflinePoint]]
    survey: Survey

    @property
    def model(self) -> str:
        """The model's name in the catalogue, or the name of the folder of its config.json."""
        name = self.deployment.scenario.model
        return Path(name).parent.name if catalog.is_file(name) else Path(name).name

    @property
    def title(self) -> str:
        return f"{self.model} on {self.deployment.serve.gpus} x {self.deployment.gpu.name}"

    @property
    def compares(self) -> bool:
        """Whether there are several GPUs to compare; with one, eta has no spread."""
        return len(self.survey.gpus) > 1

    def heading(self, step: str) -> str:
        return f"{step.capitalize()}: {_described(self.batches[step])}"


def _described(batch: Batch) -> str:
    """*batch* in words, such as "64 sequences of 1,024 tokens, 512 new tokens after 128"; counts if that is long."""
    decodes, chunks = Counter(batch.contexts), Counter(batch.chunks)
    if len(decodes) > 1 or len(chunks) > 1:
        return f"{_plural(len(batch.contexts), 'decode')}, {_plural(len(batch.chunks), 'prompt chunk')}," \
               f" {_plural(batch.tokens, 'token')}"
    parts = [f"{_plural(count, 'sequence')} of {context:,} tokens" for context, count in decodes.items()]
    parts += [(f"{count} x " if count > 1 else "") + f"{new:,} new tokens" + (f" after {context:,}" if context else "")
              for (new, context), count in chunks.items()]
    return ", ".join(parts)


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def show(report: RooflineReport, figures: Sequence[Path]) -> None:
    """Print a table of kernels for each step, one of families, and the names of the *figures*."""
    screen = console()
    for step, points in report.steps.items():
        screen.print(f"\n[bold]{report.title}[/], {report.heading(step)}")
        screen.print(_kernels(points))
    screen.print("[bold]eta of kernel families[/], geometric means weighted by time")
    screen.print(_families(report.survey))
    for zone in ZONES:
        if any(family.zone == zone for family in report.survey.families):
            screen.print(f"{zone.name}: {zone.means}")
    screen.print(f"eta is large from {LARGE:g} on, its spread wide from {WIDE:g} on: our thresholds, for want of"
                 f" published ones")
    for gpu, reason in report.survey.unpriced.items():
        screen.print(f"not priced on {gpu}: {reason}", markup=False)
    screen.print(f"drawn into {' and '.join(map(str, figures))}"
                 + ("" if report.compares else "; a map of eta needs a second GPU that the step can be priced on"),
                 markup=False)


def _kernels(points: Sequence[RooflinePoint]) -> Table:
    rows = Table.of("kernel", "family", "shape", ">runs", ">share", ">FLOP/byte", ">TFLOP/s", ">of the roof", "bound",
                    ">eta", ">90 % of eta",
                    hide=("90 % of eta", "TFLOP/s", "FLOP/byte", "runs", "of the roof", "family", "bound", "shape"))
    total = sum(point.seconds for point in points)
    for point in points:
        row = _kernel_row(point, total)
        rows.add_row(row["kernel"], row["family"], row["shape"], str(row["runs"]), f"{row['share']:.1%}",
                     _number(row["flop_per_byte"]), _number(row["tflops"]),
                     "" if row["roof_share"] is None else f"{row['roof_share']:.1%}", row["bound"],
                     _number(row["eta"]), f"{row['eta_low']:.2f}-{row['eta_high']:.2f}" if row["eta_low"] else "")
    return rows


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{2 if value < 100 else 1}f}"


def _families(survey: Survey) -> Table:
    rows = Table.of("step", "family", ">share", *(f">{gpu}" for gpu in survey.gpus), ">mean", ">spread", "zone",
                    hide=survey.gpus[::-1])
    for family in survey.families:
        rows.add_row(family.step, family.name, f"{family.share:.1%}",
                     *(_number(family.etas.get(gpu)) for gpu in survey.gpus), _number(family.eta),
                     _number(family.spread), family.zone.name if family.zone else "")
    return rows


def _kernel_row(point: RooflinePoint, total: float) -> dict[str, Any]:
    """A kernel as plain values; what is not known is None."""
    span = point.span
    low, high = (end * point.eta / span.seconds for end in (span.low, span.high))
    row = {"kernel": span.label, "family": span.family, "shape": str(span.shape), "runs": point.runs,
           "seconds": span.seconds, "share": point.seconds / total,
           "flop_per_byte": span.flops / span.bytes if span.bytes and span.flops else None,
           "tflops": span.flops / span.seconds / 1e12 if span.flops else None,
           "roof_share": point.reached or None, "bound": span.bound,
           "eta": point.eta, "eta_low": low, "eta_high": high}
    return {key: None if isinstance(value, float) and isnan(value) else value for key, value in row.items()}


def _family_row(family: FamilyEtas) -> dict[str, Any]:
    return {"step": family.step, "family": family.name, "share": family.share, "eta": dict(family.etas),
            "mean": family.eta, "spread": family.spread, "zone": family.zone.name if family.zone else None}


def check(folder: Path, json_file: Path | None) -> None:
    """Raise ConfigError unless figures can be drawn into *folder* and *json_file* can be written."""
    for target, place in ((folder, folder), *([(json_file, json_file.parent)] if json_file else [])):
        nearest = next(path for path in (place.resolve(), *place.resolve().parents) if path.exists())
        if not nearest.is_dir():
            raise ConfigError(str(target), f"cannot be written: {nearest} is not a directory")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise ConfigError(str(target), f"cannot be written: no permission to write in {nearest}")
    if json_file is not None and json_file.is_dir():
        raise ConfigError(str(json_file), "cannot be written: it is a directory")


def save(report: RooflineReport, folder: Path, json_file: Path | None) -> list[Path]:
    """Draw into *folder* and write *json_file*, all or nothing; return the figures.  Raises ConfigError."""
    with ExitStack() as stack:
        hidden = stack.enter_context(_written_at_once(folder))
        names = _draw(report, hidden)
        moves = [(hidden / name, folder / name) for name in names]
        if json_file is not None:
            written = stack.enter_context(_written_at_once(json_file.parent)) / json_file.name
            written.write_text(as_json(content(report)), encoding="utf-8")
            moves.append((written, json_file))
        for source, target in moves:
            source.replace(target)
    return [folder / name for name in names]


def content(report: RooflineReport) -> dict[str, Any]:
    """All of *report*, for a JSON file."""
    scenario, steps = report.deployment.scenario, {}
    for step, points in report.steps.items():
        batch, total = report.batches[step], sum(point.seconds for point in points)
        steps[step] = {"contexts": list(batch.contexts), "chunks": [list(chunk) for chunk in batch.chunks],
                       "seconds": total, "kernels": [_kernel_row(point, total) for point in points]}
    return {"model": scenario.model, "gpu": scenario.gpu and str(scenario.gpu), "system": scenario.system,
            "oracle": scenario.oracle and scenario.oracle.name, "steps": steps,
            "families": [_family_row(family) for family in report.survey.families],
            "thresholds": {"eta": LARGE, "spread": WIDE}, "unpriced": dict(report.survey.unpriced)}


@contextmanager
def _written_at_once(folder: Path) -> Iterator[Path]:
    """A hidden directory inside *folder*, which is made if need be; what is left in it is deleted afterwards."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden_directory(folder / "roofline") as hidden:
            yield hidden
    except OSError as error:
        raise ConfigError(str(folder), f"cannot be written: {error.strerror or error}") from error
    finally:
        for place in made:
            with suppress(OSError):  # a directory with files stays
                place.rmdir()


def _draw(report: RooflineReport, folder: Path) -> list[str]:
    """Draw the roofline, and the map of eta if there are GPUs to compare; return the names of the files."""
    from ksim.views.figures.kernels import Roof, eta_map, step_roofline

    gpu, drawn = report.deployment.gpu, {step: _placed(points) for step, points in report.steps.items()}
    formats = dict.fromkeys(point.dtype for points in drawn.values() for point in points)
    roofs = [Roof(str(dtype), gpu.flops[dtype], gpu.bandwidth) for dtype in formats if isinstance(dtype, DType)]
    step_roofline(f"Roofline: {report.title}", roofs, _steps(report, drawn)).save(folder / "roofline.png")
    if not report.compares:
        return ["roofline.png"]
    title = f"Does eta carry over? {report.model} on {len(report.survey.gpus)} GPUs"
    eta_map(title, report.survey.gpus, *_map(report)).save(folder / "eta_map.png")
    return ["roofline.png", "eta_map.png"]


def _placed(points: Any) -> list[RooflinePoint]:
    """The points that have a place under a roof: they have FLOP and bytes."""
    return [point for point in points if point.span.flops and point.span.bytes]


def _steps(report: RooflineReport, drawn: dict[str, list[RooflinePoint]]) -> list[Any]:
    from ksim.views.figures.kernels import KernelMark, StepMarks

    steps = []
    for step, points in drawn.items():
        marks = [KernelMark(point.span.label, point.span.flops / point.span.bytes,
                            point.span.flops / point.span.seconds, point.seconds, point.span.bound,
                            point.span.flops / point.span.high, point.span.flops / point.span.low) for point in points]
        total = sum(point.seconds for point in report.steps[step])
        steps.append(StepMarks(report.heading(step), marks, sum(point.seconds for point in points) / total))
    return steps


def _map(report: RooflineReport) -> tuple[dict[str, list[Any]], list[Any]]:
    """The families of each step, and the zones of the map."""
    from ksim.views.figures.kernels import FamilyMark, ZoneArea

    marks: dict[str, list[Any]] = {report.heading(step): [] for step in report.steps}
    for family in report.survey.families:
        etas = family.etas.values()
        marks[report.heading(family.step)].append(
            FamilyMark(family.name, family.eta, min(etas), max(etas), family.share))
    return marks, [ZoneArea(zone.name, zone.eta, zone.spread) for zone in ZONES]
