"""Logs of nccl-tests: what ``all_reduce_perf`` and its sisters print."""

import re
from pathlib import Path

import numpy as np

from ksim.calibration.datasheet import format_name, gpu_name
from ksim.calibration.measurements import COLLECTIVES, Measurements, Source, tagged
from ksim.foundation.errors import DataError
from ksim.foundation.files import LONGEST_TABLE, regular_file

_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bdevice\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_TOOL = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce)_perf\b")
_RESULT = re.compile(r"(?:^|>:?)\s*(\d+)\s+\d+\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(\S.*)$")
_VERSION = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)")
_FAMILIES = {"alltoall": "all_to_all", "sendrecv": "send"}
#: Fields after the root: time, two bandwidths and the errors, out of place and then in place.
_FIELDS = 8


def recognises(start: str) -> bool:
    """Return whether a file that begins with *start* is such a log."""
    return "algbw" in start or "# nThread" in start


def measurements(path: Path) -> list[Measurements]:
    """Return the out-of-place times of each number format; raise DataError for a log without any.

    The number of GPUs is that of the ranks in the log's header.  The collective is that of the tool that the log or the
    file's name mentions, or else of the rows' operation.
    """
    lines = regular_file(path, LONGEST_TABLE).read_text(encoding="utf-8", errors="replace").splitlines()
    ranks = {int(match[1]): match[2] for line in lines if (match := _RANK.search(line))}
    if not ranks:
        raise DataError(str(path), "has no lines '#  Rank  0 ...', so it does not say how many GPUs took part; "
                                   "keep the whole output of nccl-tests")
    results: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
    tool = next((match[1] for text in (*lines, path.stem) if (match := _TOOL.search(text))), "")
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#") and (match := _RESULT.search(line)):
            family = _family(tool, match[3], path, number)
            results.setdefault((family, match[2]), []).append((number, *_row(match, path, number)))
    if not results:
        raise DataError(str(path), "has no rows of results (size, count, type, redop, root, time); did the run end?")
    version = next((match[1] or match[2] for line in lines if (match := _VERSION.search(line))), "")
    device = ranks[min(ranks)]
    return [_made(path, family, dtype, rows, len(ranks), version, device) for (family, dtype), rows in results.items()]


def _made(path: Path, family: str, dtype: str, rows: list[tuple[int, int, float]], gpus: int, version: str,
          device: str) -> Measurements:
    places, sizes, times = (np.array(column) for column in zip(*rows, strict=True))
    source = Source(str(path), "nccl", version, "nccl-tests", "", device, "line")
    return Measurements(
        family=family, dtype=format_name(dtype), columns={"gpus": np.full(len(rows), gpus), "bytes": sizes},
        tags=tagged("", len(rows)), seconds=times * 1e-6, rows=places, source=source, gpu=gpu_name(device))


def _family(tool: str, operation: str, path: Path, line: int) -> str:
    """Return the collective of *tool*; if the log names no tool, an operation means an all-reduce."""
    family = _FAMILIES.get(tool, tool)
    if family in COLLECTIVES:
        return family
    if operation != "none":
        return "all_reduce"
    raise DataError(f"{path}:{line}", "does not say which collective was run; keep the line '# Collective test "
                                      "starting: ...', or name the file after the tool, such as all_gather_perf.log")


def _row(match: re.Match[str], path: Path, line: int) -> tuple[int, float]:
    """Return bytes and microseconds."""
    fields = match[5].split()
    if len(fields) < _FIELDS:
        raise DataError(f"{path}:{line}", f"has {len(fields)} fields after the root's, but nccl-tests prints {_FIELDS}"
                                          f"; is the line cut short?")
    try:
        return int(match[1]), float(fields[0])
    except ValueError:
        return int(match[1]), np.nan
