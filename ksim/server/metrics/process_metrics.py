"""The metrics of this process, with prometheus_client's names."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from platform import python_implementation, python_version
from time import process_time

from ksim.server.metrics.exposition import Family

__all__ = ["open_files", "process_families"]

_STATISTICS = Path("/proc/self")


def process_families() -> list[Family]:
    """CPU, memory and open files of the process; only CPU on systems without /proc."""
    families = list[Family]()
    for name, kind, description, value in (
            ("process_cpu_seconds", "counter", "CPU seconds that the process has used.", process_time()), *_memory()):
        family = Family(name, kind, description)
        family.count({}).value = value
        families.append(family)
    python, version = Family("python_info", "gauge", "The interpreter."), sys.version_info
    python.count({"implementation": python_implementation(), "major": str(version[0]), "minor": str(version[1]),
                  "patchlevel": str(version[2]), "version": python_version()}).value = 1
    return [*families, python]


def open_files() -> int:
    """How many files and sockets the process has open; 0 on systems without /proc."""
    try:
        return sum(1 for _ in (_STATISTICS / "fd").iterdir()) - 1
    except OSError:
        return 0


def _memory() -> Iterator[tuple[str, str, str, float]]:
    try:
        fields = (_STATISTICS / "stat").read_text().rpartition(")")[2].split()
        clock, page, boot = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"), _boot_time()
    except OSError:
        return
    yield "process_virtual_memory_bytes", "gauge", "Virtual memory of the process.", float(fields[20])
    yield "process_resident_memory_bytes", "gauge", "Memory of the process.", float(fields[21]) * page
    yield ("process_start_time_seconds", "gauge", "When the process began, in seconds since 1970.",
           boot + float(fields[19]) / clock)
    yield "process_open_fds", "gauge", "Open files and sockets.", float(open_files())


def _boot_time() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
