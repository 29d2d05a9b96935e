"""How long users wait before anything is simulated: CPU time of whole child processes."""

import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.apart import Figures, as_installed, best
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside

#: What is run by what it may take, in CPU seconds: arguments of Python, the last folder being written to.
PROGRAMS: dict[str, tuple[list[str], float | None]] = {
    "Python itself": (["-c", "pass"], None),
    "import ksim": (["-c", "import ksim"], 0.2),
    "ksim --help": (["-m", "ksim", "--help"], 0.3),
    "quickstart": (["-m", "ksim", "run", "scenarios/quickstart.toml", "--no-plots", "--quiet", "-o"], 2.0),
}


def findings() -> Findings:
    """Each program, best of three."""
    rows, judged = [], []
    for name, (arguments, limit) in PROGRAMS.items():
        figures, yardstick = beside(partial(best, partial(_run, arguments), "seconds"))
        rows.append((name, f"{figures['seconds']:.3f}", f"{yardstick / 1e6:.2f}"))
        if limit:
            judged.append(Goal(name, limit, "CPU s").judged(figures["seconds"], yardstick))
    return Findings([Sheet("Start-up: CPU time of a whole process", ("program", "s", "yardstick, M/s"), rows)], judged)


def _run(arguments: list[str]) -> Figures:
    """CPU seconds, user and system, of a Python with *arguments*."""
    with tempfile.TemporaryDirectory() as folder:
        target = [str(Path(folder) / "run")] if arguments[-1] == "-o" else []
        before = _of_children()
        subprocess.run([sys.executable, *arguments, *target], check=True, capture_output=True, env=as_installed())
        return {"seconds": _of_children() - before}


def _of_children() -> float:
    """CPU seconds of all that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
