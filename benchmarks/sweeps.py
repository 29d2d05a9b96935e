"""A sweep of 200 points, as a user types it: in one process, in two, and on a local Ray of two workers."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.apart import Figures, as_installed
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import STANDARD

COMMAND = ("sweep", "scenarios/quickstart.toml", "--set", "workload.replay.limit=100", "--over",
           "serve.max_num_seqs=8:256:log", "--over", "power.cap=400:700 W", "--sample", "latin:200")
#: How the runs are computed, and how much of one core's time that may take; the first is one core.
WAYS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "one process": (("--jobs", "1"), None), "2 processes": (("--jobs", "2"), 0.6),
    "a local Ray of 2": (("--on", "ray", "--jobs", "2"), 0.7)}
COLUMNS = ("how", "wall s", "of one core's", "CPU s", "load")


def findings() -> Findings:
    """Each way once, one after the other: they take minutes, and a machine is calm for minutes or not at all."""
    found, tables = dict[str, Figures](), set[bytes]()
    with tempfile.TemporaryDirectory() as folder:
        for name, (words, _) in WAYS.items():
            target = Path(folder) / name
            found[name] = _command(*COMMAND, *words, "-o", str(target))
            tables.add((target / "runs.parquet").read_bytes())
    if len(tables) > 1:
        raise SystemExit("the tables of the same sweep differ")
    one = found["one process"]["seconds"]
    rows = [(name, f"{figures['seconds']:.1f}", f"{figures['seconds'] / one:.2f}", f"{figures['cpu']:.1f}",
             f"{figures['load']:.1f}") for name, figures in found.items()]
    judged = [Goal(f"200 points: {name} over one process", limit, "times", timed=False).judged(
        found[name]["seconds"] / one, STANDARD) for name, (_, limit) in WAYS.items() if limit]
    title = "200 points on 2 cores, in wall time; the CPU time is without that of Ray's own processes"
    return Findings([Sheet(title, COLUMNS, rows)], judged)


def _command(*words: str) -> Figures:
    """Wall and CPU seconds of `ksim` with *words*, its own processes included, and the mean load meanwhile."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "ksim", *words], check=True, env=as_installed(), stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = (after.children_user + after.children_system) - (before.children_user + before.children_system)
    return {"seconds": time.perf_counter() - begin, "cpu": cpu, "load": os.getloadavg()[0]}
