"""Prometheus metrics and their text format.

The text is that of prometheus_client (format 0.0.4), without `_created` samples.  To count costs one addition: there is
no registry and no lock, because one event loop counts and writes the text.

The metrics of this process, with prometheus_client's names.
"""

import os
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isinf, isnan
from pathlib import Path
from platform import python_implementation, python_version
from time import process_time

from attrs import define, field

__all__ = ["CONTENT_TYPE", "Count", "Family", "Histogram", "text", "open_files", "process_families"]


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@define(eq=False)
class Count:
    """The sample of a counter, a gauge or a summary; a summary also has the `count` of its values."""

    value: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        """Add a value of a summary."""
        self.value += value
        self.count += 1


@define(eq=False)
class Histogram:
    """Counts values in buckets with these upper `bounds`."""

    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count *value* so many *times*."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@define(eq=False)
class Family:
    """All samples of the metric `name` by their labels; its `kind` is counter, gauge, histogram or summary."""

    name: str
    kind: str
    help: str
    bounds: Sequence[float] = ()
    samples: dict[tuple[tuple[str, str], ...], Count | Histogram] = field(factory=dict, init=False)

    def count(self, labels: Mapping[str, str]) -> Count:
        """The sample with these *labels*; a missing one is made."""
        sample = self.samples.setdefault(tuple(labels.items()), Count())
        assert isinstance(sample, Count), "histograms have no single value"
        return sample

    def histogram(self, labels: Mapping[str, str]) -> Histogram:
        """The histogram with these *labels*; a missing one is made."""
        key = tuple(labels.items())
        if key not in self.samples:
            self.samples[key] = Histogram(self.bounds)
        sample = self.samples[key]
        assert isinstance(sample, Histogram), "only histograms have buckets"
        return sample

    def lines(self) -> Iterator[str]:
        """Its lines of text."""
        name = self.name + "_total" * (self.kind == "counter")
        yield f"# HELP {name} {_escaped(self.help)}"
        yield f"# TYPE {name} {self.kind}"
        for labels, sample in self.samples.items():
            if isinstance(sample, Histogram):
                yield from _buckets(name, labels, sample)
            elif self.kind == "summary":
                yield f"{name}_count{_braces(labels)} {_number(sample.count)}"
                yield f"{name}_sum{_braces(labels)} {_number(sample.value)}"
            else:
                yield f"{name}{_braces(labels)} {_number(sample.value)}"


def text(families: Sequence[Family]) -> bytes:
    """*families* as a Prometheus server reads them."""
    return "".join(f"{line}\n" for family in families for line in family.lines()).encode()


def _buckets(name: str, labels: tuple[tuple[str, str], ...], sample: Histogram) -> Iterator[str]:
    below = 0
    for bound, count in zip((*sample.bounds, inf), sample.counts, strict=True):
        below += count
        yield f"{name}_bucket{_braces((*labels, ('le', _number(bound))))} {_number(below)}"
    yield f"{name}_count{_braces(labels)} {_number(below)}"
    yield f"{name}_sum{_braces(labels)} {_number(sample.total)}"


def _braces(labels: Sequence[tuple[str, str]]) -> str:
    inside = ",".join(f'{label}="{_quoted(value)}"' for label, value in sorted(labels))
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', r"\"")


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    digits, _, fraction = repr(float(value)).partition(".")
    if len(digits) > 6 and "e" not in fraction and value > 0:  # as Go writes them: labels are compared as texts
        return f"{f'{digits[0]}.{digits[1:]}{fraction}'.rstrip('0').rstrip('.')}e+{len(digits) - 1:02}"
    return repr(float(value))


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
