"""`python -m benchmarks [PART ...] [--most REQUESTS] [--files] [--write]`: measure, and print tables and goals."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import (
    autoscaled,
    caches,
    capacity_coverage,
    capacity_crn,
    cold_starts,
    detail,
    flows,
    gallery,
    oracles,
    page,
    planning,
    routers,
    routing,
    scaling,
    scheduler,
    speed,
    split,
    startup,
    sweeps,
    walks,
)
from benchmarks.findings import Findings
from benchmarks.pages import put
from benchmarks.yardstick import STANDARD, microseconds

PAGE = Path("docs/evidence/speed.md")
#: The page of parts whose tables are in another.
ELSEWHERE = {name: Path("docs/evidence/accuracy.md")
             for name in ("autoscaled", "cold_starts", "capacity_coverage", "capacity_crn", "planning")}
#: Runs in processes of their own come first.
PARTS: dict[str, Callable[[], Findings]] = {
    "speed": speed.findings, "scaling": scaling.findings, "startup": startup.findings, "detail": detail.findings,
    "split": split.findings, "routing": routing.findings,
    "scheduler": scheduler.findings, "caches": caches.findings, "oracles": oracles.findings,
    "flows": flows.findings, "routers": routers.findings, "walks": walks.findings,
    "sweeps": sweeps.findings, "page": page.findings,
    "gallery": gallery.findings, "capacity_coverage": capacity_coverage.findings, "capacity_crn": capacity_crn.findings,
    "planning": planning.findings, "autoscaled": autoscaled.findings,
    "cold_starts": cold_starts.findings,
}


def main() -> None:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in options.parts or PARTS:
        _yardstick(console)
        tables = _part(name, options)().all
        for sheet in tables:
            console.print(f"{sheet.title}:", sheet.rich(), sep="\n")
        if options.write and name != "gallery":  # which writes its own page
            put(ELSEWHERE.get(name, PAGE), name, (line for sheet in tables for line in sheet.markdown()))
    _yardstick(console)


def _part(name: str, options: argparse.Namespace) -> Callable[[], Findings]:
    """What measures the part *name*, as the *options* say."""
    told = {"scaling": partial(scaling.findings, options.most), "walks": partial(walks.findings, options.files),
            "gallery": partial(gallery.findings, options.write)}
    return told.get(name, PARTS[name])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast ksim is, beside its peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--most", type=int, help=f"scale up to so many requests, of {scaling.SIZES}")
    parser.add_argument("--files", action="store_true", help="list the files that walks pass")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE} and others, too")
    options = parser.parse_args()
    if unknown := {*options.parts} - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def _yardstick(console: Console) -> None:
    console.print(f"yardstick: an event of SimPy takes {microseconds():.2f} us of CPU; where peers were measured,"
                  f" {STANDARD}")


if __name__ == "__main__":
    main()
