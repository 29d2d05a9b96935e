"""Measure something in a process of its own, and keep the best of several times."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Figures = dict[str, float]

#: CPU seconds after which nothing is measured once more.
ENOUGH = 20.0


def measured(module: str, *arguments: str) -> Figures:
    """What `python -m MODULE ARGUMENTS` prints in its last line, as JSON."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=as_installed())
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def spent(*arguments: str) -> Figures:
    """CPU seconds, user and system, that a Python with *arguments* takes, and the most MB that it holds."""
    command = [sys.executable, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=as_installed())
    assert child.stderr is not None, "it is a pipe"
    errors = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {errors.decode()}")
    scale = 1 if sys.platform == "darwin" else 1024
    return {"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss * scale / 1e6}


def as_installed() -> dict[str, str]:
    """An environment in which modules are compiled once, as where they are installed, and not by every process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def best(measure: Callable[[], Figures], seconds: str, times: int = 3) -> Figures:
    """The figures of that of three times which took the fewest CPU *seconds*; of fewer, where that takes long."""
    found: list[Figures] = []
    while len(found) < times and sum(figures[seconds] for figures in found) < ENOUGH:
        found.append(measure())
    return min(found, key=lambda figures: figures[seconds])


def peak_megabytes() -> float:
    """The most memory this process has held, in 10^6 bytes; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's peak is at least that of the process which started this one
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024 / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
