"""`python -m benchmarks [PART ...] [--most REQUESTS] [--write]`: measure, and print tables with what the goals were."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import caches, detail, oracles, scaling, scheduler, speed, startup
from benchmarks.findings import Findings
from benchmarks.pages import put
from benchmarks.yardstick import STANDARD, microseconds

PAGE = Path("docs/speed.md")
#: Runs in processes of their own come first.
PARTS: dict[str, Callable[[], Findings]] = {
    "speed": speed.findings, "scaling": scaling.findings, "startup": startup.findings, "detail": detail.findings,
    "scheduler": scheduler.findings, "caches": caches.findings, "oracles": oracles.findings,
}


def main() -> None:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in options.parts or PARTS:
        _yardstick(console)
        part = partial(scaling.findings, options.most) if name == "scaling" else PARTS[name]
        tables = part().all
        for sheet in tables:
            console.print(f"{sheet.title}:", sheet.rich(), sep="\n")
        if options.write:
            put(PAGE, name, (line for sheet in tables for line in sheet.markdown()))
    _yardstick(console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast ksim is, beside its peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--most", type=int, help=f"scale up to so many requests, of {scaling.SIZES}")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE} too")
    options = parser.parse_args()
    if unknown := {*options.parts} - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def _yardstick(console: Console) -> None:
    console.print(f"yardstick: an event of SimPy takes {microseconds():.2f} us of CPU; where peers were measured,"
                  f" {STANDARD}")


if __name__ == "__main__":
    main()
