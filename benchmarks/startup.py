"""How long users wait before anything is simulated: CPU time of whole child processes."""

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.apart import Figures, best, spent
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside

#: What is run by what it may take, in CPU seconds: arguments of Python, the last folder being written to.
PROGRAMS: dict[str, tuple[list[str], float | None]] = {
    "Python itself": (["-c", "pass"], None),
    "import ksim": (["-c", "import ksim"], 0.2),
    "ksim --help": (["-m", "ksim", "--help"], 0.3),
    "quickstart, --quiet": (["-m", "ksim", "run", "scenarios/quickstart.toml", "--quiet"], None),
    "quickstart": (["-m", "ksim", "run", "scenarios/quickstart.toml", "-o"], 2.0),
}


def findings() -> Findings:
    """Each program, best of three."""
    rows, judged = [], []
    for name, (arguments, limit) in PROGRAMS.items():
        figures, yardstick = beside(partial(best, partial(_run, arguments), "seconds"))
        rows.append((name, f"{figures['seconds']:.3f}", f"{yardstick:.2f}"))
        if limit:
            judged.append(Goal(name, limit, "CPU s").judged(figures["seconds"], yardstick))
    return Findings([Sheet("Start-up: CPU time of a whole process", ("program", "s", "SimPy us/event"), rows)], judged)


def _run(arguments: list[str]) -> Figures:
    """CPU seconds, user and system, of a Python with *arguments*."""
    with tempfile.TemporaryDirectory() as folder:
        target = [str(Path(folder) / "run")] if arguments[-1] == "-o" else []
        return spent(*arguments, *target)
