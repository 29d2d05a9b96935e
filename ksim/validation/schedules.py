"""Recorded schedules compared with ours: whether they are equal, and where they first differ."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.validation.cases import CaseFile, Row, find, load_json, read
from ksim.validation.replay import OffloadReplay, ScheduleReplay, TransferReplay
from ksim.validation.sglang_cases import SglangCaseFile, read_sglang
from ksim.validation.sglang_split import replay_of

#: vLLM's counts of block hashes; ksim has no such table.
_NOT_OURS = {"nh", "nh2"}


@frozen
class Difference:
    """A key whose value is not the `expected` one, at `step` or, for None, of the case; `rows` are both whole steps."""

    step: int | None
    key: str
    expected: Any
    got: Any
    rows: tuple[Row | None, Row | None] = (None, None)


@frozen
class ScheduleReport:
    """A case of so many `steps`, and the first `difference`; None where all steps are exact."""

    case: str
    kind: str
    steps: int
    difference: Difference | None

    @property
    def exact(self) -> bool:
        return self.difference is None


def validate(path: Path, case: str = "") -> list[ScheduleReport]:
    """Compare the cases in the file or folder at *path*, or the *case* there; raises KsimError where there is none."""
    return [compare(_read(file)) for file in find(path, case)]


def _read(path: Path) -> CaseFile | SglangCaseFile:
    """Read the file of a case of vLLM's scheduler, or of SGLang's."""
    table = load_json(path)
    return read_sglang(table, path) if "sglang" in table else read(path)


def compare(recording: CaseFile | SglangCaseFile, repeats: bool = True) -> ScheduleReport:
    """Replay *recording* up to the first difference; unless it *repeats*, every schedule is computed anew."""
    case, first = recording.case, next(differences(recording, repeats), None)
    return ScheduleReport(case.name, case.kind, len(recording.expected.steps), first)


def differences(recording: CaseFile | SglangCaseFile, repeats: bool = True) -> Iterator[Difference]:
    """Yield the differences between *recording* and its replay, in order."""
    if isinstance(recording, SglangCaseFile):
        yield from _differences(recording.expected, replay_of(recording.case, repeats))
        return
    expected = recording.expected
    yield from _between({"depth": expected.depth}, {"depth": recording.case.settings.depth}, None)
    yield from _differences(expected, _replay(recording, repeats))


def _differences(expected: Any, replay: Any) -> Iterator[Difference]:
    for row, own in zip_longest(expected.steps, replay.steps()):
        yield from _between_steps(row, own)
        if row is None or own is None:
            return
    yield from _between({"end": expected.end}, {"end": replay.end}, None)
    for index, (outcome, own) in enumerate(zip(expected.requests, replay.outcomes, strict=True)):
        yield from _between(outcome, own, None, f"requests[{index}].")


def _replay(recording: CaseFile, repeats: bool) -> ScheduleReplay:
    if recording.case.settings.connector is None:
        return ScheduleReplay(recording.case, repeats)
    written = frozenset(row["s"] for row in recording.expected.steps if isinstance(row["s"], int))
    kind = OffloadReplay if recording.case.settings.connector.offloads else TransferReplay
    return kind(recording.case, repeats, written)


def _between_steps(row: Row | None, own: Row | None) -> Iterator[Difference]:
    if row is None or own is None:  # one of the two has ended
        step = (row or own or {})["s"]
        yield Difference(step, "s", row and step, own and step, (row, own))
    else:
        yield from _between({key: value for key, value in row.items() if key not in _NOT_OURS}, own, row["s"])


def _between(expected: Row, got: Row, step: int | None, prefix: str = "") -> Iterator[Difference]:
    """The keys in which two rows differ; a missing key counts as None."""
    if expected == got:
        return
    for key in dict.fromkeys([*expected, *got]):
        if expected.get(key) != got.get(key):
            yield Difference(step, *_narrowed(prefix + key, expected.get(key), got.get(key)), (expected, got))


def _narrowed(key: str, expected: Any, got: Any) -> tuple[str, Any, Any]:
    """Narrow two different batches to the first grant that differs."""
    if key != "sched" or not isinstance(expected, list) or not isinstance(got, list):
        return key, expected, got
    pairs = zip_longest(expected, got)
    return next((f"{key}[{index}]", one, other) for index, (one, other) in enumerate(pairs) if one != other)
