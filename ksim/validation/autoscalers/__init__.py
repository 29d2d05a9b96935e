"""Decisions of real autoscalers replayed: files of cases, and where ours first differ from what was decided."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ksim.foundation.errors import DataError, KsimError, UnknownName
from ksim.validation.cases import find, load_json
from ksim.validation.schedules import Difference, ScheduleReport

__all__ = ["Case", "validate"]

#: A case: its name, what is given, and what was decided.
Case = Mapping[str, Any]
#: The module here that replays each part of a file; a key without `part` is one that all cases of a file have.
_PARTS = {
    "one_reconcile": "hpa_tables", "stabilise_without_behavior": "hpa_tables", "stabilise": "hpa_tables",
    "store_event": "hpa_tables", "replicas_from_metric": "hpa_tables", "limit_rate": "hpa_tables",
    "activation": "kubernetes", "fallback": "kubernetes", "activation_threshold": "kubernetes",
    "rolling_update": "kubernetes", "disruption_budget": "kubernetes", "termination": "kubernetes",
    "saturation_v1": "wva", "saturation_v2": "wva", "queue_model": "wva",
}
_KEYS = {"ticks": "planner", "intervals": "planner", "steps": "hpa_series"}


def validate(path: Path, name: str = "") -> list[ScheduleReport]:
    """Replay the cases of the file or folder at *path*, or the one called *name*.

    Raises DataError for what is no file of cases, and UnknownName where none is called so.
    """
    cases = [(file, meta, case) for file in find(path) for meta, case in _read(file)]
    chosen = [entry for entry in cases if name in ("", entry[2]["name"])]
    if not chosen:
        raise UnknownName("case", name, [case["name"] for _, _, case in cases])
    return [_report(*entry) for entry in chosen]


def _read(file: Path) -> Iterator[tuple[Case, Case]]:
    """Each case of *file*, behind what the file says of all."""
    table = load_json(file)
    cases, meta = table.get("cases"), table.get("meta", {})
    if not isinstance(cases, list) or not cases:
        raise DataError(str(file), "is no file of autoscalers' cases: expected a table with meta and cases")
    for index, case in enumerate(cases):
        if not isinstance(case, dict) or not isinstance(case.get("name"), str):
            raise DataError(f"{file}: cases[{index}]", "is no case: it has no name")
        yield meta, case


def _report(file: Path, meta: Case, case: Case) -> ScheduleReport:
    replay = _replay_of(file, case)
    try:
        found = list(replay(case, meta))
    except KsimError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"{file}: {case['name']}", f"cannot be replayed: {type(error).__name__}: {error}") from error
    steps = next((len(case[key]) for key in _KEYS if key in case), 1)
    return ScheduleReport(case["name"], file.name.partition(".")[0], steps, next(iter(found), None))


def _replay_of(file: Path, case: Case) -> Callable[[Case, Case], Iterator[Difference]]:
    part = case.get("part")
    module = _PARTS.get(str(part)) if part else next((_KEYS[key] for key in _KEYS if key in case), None)
    if module is None:
        raise DataError(f"{file}: {case['name']}", f"part {part!r} is none of {', '.join(_PARTS)}" if part else
                        f"has none of {', '.join(_KEYS)}")
    found: Callable[[Case, Case], Iterator[Difference]] = import_module(f"{__name__}.{module}").differences
    return found
