"""Measured serving runs: the rows of a table of silicon samples."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.calibration.reading.frames import Frame, load
from ksim.foundation.errors import DataError
from ksim.validation.silicon.workers import Split, Whole

_TEXTS = ("id", "backend", "backend_version", "model_path", "system", "precision", "mode", "source", "group", "flags")
_COUNTS = ("isl", "osl", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "concurrency")
_TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
#: Columns that a table may lack: every row is then a measurement of its own, without flags, from an unknown source.
_OPTIONAL = {"backend_version", "precision", "source", "group", "flags", "primary"}


@frozen
class Row:
    """A measured run, with the names of its source, sizes in tokens, GPUs and requests, and times in seconds.

    `prompt` and `output` are the nominal tokens of a request.  `concurrency` is the number of requests in flight over
    all GPUs; 0 where it is not known.  `attention_dp` is 0 in rows with the flag "dp0".  `primary` is False for a copy
    of another row.  `split` is the deployment of a disaggregated run, None without a table of worker counts; `whole`
    that of another run, None where no table has it.
    """

    id: str
    backend: str
    version: str
    model_path: str
    system: str
    precision: str
    mode: str
    source: str
    group: str
    flags: str
    primary: bool
    prompt: int
    output: int
    tensor: int
    pipeline: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    concurrency: int
    ttft: float
    tpot: float
    split: Split | None = None
    whole: Whole | None = None

    @property
    def gpus(self) -> int:
        """GPUs of a disaggregated deployment; 0 where they are not known."""
        return self.split.gpus if self.split else 0

    @property
    def speculation(self) -> str:
        """How it decoded speculatively, "none", or "" where that is not known."""
        deployed = self.split or self.whole
        return deployed.speculation if deployed else ""


def read(path: Path) -> list[Row]:
    """Read the rows of the table at *path*, Parquet or CSV.

    Raises DataError for a file that cannot be read, a missing column, and an impossible value.
    """
    frame = load(path)
    if missing := [name for name in (*_TEXTS, *_COUNTS, *_TIMES) if name not in frame and name not in _OPTIONAL]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of silicon samples has"
                                   f" {', '.join((*_TEXTS, *_COUNTS, *_TIMES))}")
    seen: set[str] = set()
    rows = [_row(str(path), values) for values in _records(frame)]
    for row in rows:
        if row.id in seen:
            raise DataError(str(path), f"row {row.id}: column 'id' names two rows")
        seen.add(row.id)
    return rows


def reference(path: Path) -> dict[str, tuple[float, float]]:
    """Another simulator's answers: TTFT and TPOT in seconds by row id; raises DataError as `read` does."""
    frame = load(path)
    names = [name for name in frame.names if name != "id"]
    ttft, tpot = ([name for name in names if name.endswith(f"{what}_ms")] for what in ("ttft", "tpot"))
    if "id" not in frame or len(ttft) != 1 or len(tpot) != 1:
        raise DataError(str(path), "expected the columns id, *ttft_ms and *tpot_ms, one each, and found"
                                   f" {', '.join(frame.names)}")
    answers = {}
    for name, *times in zip(frame.texts("id").tolist(), frame.numbers(ttft[0]).tolist(),
                            frame.numbers(tpot[0]).tolist(), strict=True):
        if not all(math.isfinite(time) and time > 0 for time in times):
            raise DataError(str(path), f"row {name}: a time is not above 0 ms: {times}")
        answers[name] = (times[0] / 1e3, times[1] / 1e3)
    return answers


def _records(frame: Frame) -> Iterator[dict[str, Any]]:
    """The rows of *frame* as plain values; None for a missing number, "" for a missing text."""
    columns: dict[str, list[Any]] = {}
    for name in _TEXTS:
        columns[name] = frame.texts(name).tolist() if name in frame else [""] * len(frame)
    for name in (*_COUNTS, *_TIMES):
        columns[name] = [None if math.isnan(value) else value for value in frame.numbers(name).tolist()]
    primary = frame.texts("primary").tolist() if "primary" in frame else ["true"] * len(frame)
    columns["primary"] = [text.lower() in ("true", "1") for text in primary]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _row(where: str, values: Mapping[str, Any]) -> Row:
    name = values["id"]
    if not name:
        raise DataError(where, "a row has no 'id'")

    def checked(column: str, sound: Callable[[float], bool], wanted: str, default: float | None = None) -> float:
        value = default if values[column] is None else values[column]
        if value is None or not math.isfinite(value) or not sound(value):
            raise DataError(where, f"row {name}: column {column!r} is {value}; expected {wanted}")
        return float(value)

    def count(column: str, least: int, default: int | None = None) -> int:
        return int(checked(column, lambda value: value >= least and value == int(value),
                           f"a whole number from {least} on", default))

    def time(column: str) -> float:
        return checked(column, lambda value: value > 0, "milliseconds above 0") / 1e3

    if values["mode"] not in ("agg", "disagg"):
        raise DataError(where, f"row {name}: column 'mode' is {values['mode']!r}; expected 'agg' or 'disagg'")
    whole = 0 if values["mode"] == "disagg" else None  # prefill and decode workers have columns of their own
    return Row(
        id=name, backend=values["backend"], version=values["backend_version"], model_path=values["model_path"],
        system=values["system"], precision=values["precision"], mode=values["mode"], source=values["source"],
        group=values["group"] or name, flags=values["flags"], primary=values["primary"],
        prompt=count("isl", 1), output=count("osl", 1), tensor=count("tp_size", 0 if whole == 0 else 1, whole),
        pipeline=count("pp_size", 0 if whole == 0 else 1, whole or 1), attention_dp=count("attention_dp_size", 0, 1),
        moe_tp=count("moe_tp_size", 0, 1), moe_ep=count("moe_ep_size", 0, 1),
        concurrency=count("concurrency", 0, 0), ttft=time("silicon_ttft_ms"), tpot=time("silicon_tpot_ms"))
