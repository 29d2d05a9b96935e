"""A counter-example, read back from its scenario file and replayed."""

import csv
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from ksim.foundation.catalog import plugin
from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.scenario import Scenario
from ksim.testing.history import Moment
from ksim.testing.invariants import INVARIANTS
from ksim.testing.trial import COMPARED, TURN, Arrival, Case, Subject, examine

_HEADER = re.compile(r"^# (\S+) breaks (\w+) in step (\d+): (.*)$", re.MULTILINE)
_UNTOLD = re.compile(r"^# Not in this file: (.*)\.$", re.MULTILINE)


@frozen
class WrittenFault:
    """The fault that a file of `check_policy` describes.

    `untold` lists what the file cannot hold; it is "" if the case is complete.
    """

    subject: str
    invariant: str
    step: int
    problem: str
    untold: str

    @classmethod
    def read(cls, path: Path) -> "WrittenFault":
        """Read the comment at the head of a file; raises ConfigError if there is none."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        found, untold = _HEADER.search(text), _UNTOLD.search(text)
        if found is None:
            how = f"; to get one: ksim run {path} -o DIR" if path.suffix == ".toml" else ""
            raise ConfigError(str(path), "is neither the directory of a run nor a counter-example of `check_policy`,"
                                         f" a scenario whose first line says what breaks{how}")
        return cls(found[1], found[2], int(found[3]), found[4], untold[1] if untold else "")

    @property
    def statement(self) -> str:
        """The statement of the invariant."""
        known: dict[str, Any] = {**INVARIANTS, **COMPARED}
        return " ".join((inspect.getdoc(known[self.invariant]) or "").split()) if self.invariant in known else ""


@frozen
class Replayed:
    """The replayed `case` and its history.

    `breach` is (step, problem) if the invariant breaks, else None.
    """

    case: Case
    breach: tuple[int, str] | None
    moments: list[Moment]


def replay(path: Path, written: WrittenFault) -> Replayed:
    """Replay the case in the file at *path* with the policy that it names, on ksim's scheduler and cache.

    Raises ConfigError or DataError if the scenario cannot be read or its policy does not exist.
    """
    scenario = Scenario.read(path)
    case = _case(scenario)
    serve = scenario.serve
    subject = Subject(plugin("scheduling.policies", serve.scheduling_policy),
                      admission=plugin("scheduling.admissions", serve.admission),
                      invariants=(written.invariant,))
    found = examine(subject, case)
    return Replayed(case, found and found[1:], subject.play(case).schedules)


def _case(scenario: Scenario) -> Case:
    serve, shares = attrs.asdict(scenario.serve, recurse=False), scenario.serve.enable_prefix_caching is not False
    keys = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "async_scheduling", "watermark",
            "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "scheduler_reserve_full_isl",
            "pipeline_parallel_size", "prefill_schedule_interval", "enable_chunked_prefill", "max_num_active_seqs")
    settings = {key: serve[key] for key in keys if serve.get(key) is not None}
    settings |= {"blocks": (serve["num_gpu_blocks_override"] or 1001) - 1, "block_tokens": serve["block_size"],
                 "prefix_caching": shares}
    return Case(settings, tuple(_arrivals(_trace(scenario))), named_outputs=False)


def _trace(scenario: Scenario) -> Path:
    if scenario.workload.replay is None:
        raise ConfigError("workload", "is not the trace of a counter-example")
    return scenario.workload.replay.path


def _arrivals(path: Path) -> Iterator[Arrival]:
    """The rows of a trace that `ksim.testing.trial` wrote, with times as turns."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _shared(file) if path.suffix == ".jsonl" else map(_plain, csv.DictReader(file))
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise DataError(str(path), f"is not the trace that was written beside the scenario: {error}") from None


def _plain(row: Mapping[str, str]) -> Arrival:
    return Arrival(round(float(row["arrival"]) / TURN), int(row["prompt"]), int(row["output"]),
                   priority=int(row["priority"]), family=int(row["tenant"]))


def _shared(lines: Iterable[str]) -> Iterator[Arrival]:
    """Rows of Mooncake's format: requests of a family have the same first block."""
    families: dict[int, int] = {}
    for row in map(json.loads, lines):
        family = families.setdefault(row["hash_ids"][0], len(families))
        yield Arrival(round(row["timestamp"] / 1e3 / TURN), row["input_length"], row["output_length"], family=family)
