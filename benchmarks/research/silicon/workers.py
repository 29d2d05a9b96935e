"""How runs were deployed, by tables that name runs by their ids: worker counts of disaggregated runs, and which runs
decoded speculatively."""

from collections.abc import Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.calibration.reading.frames import Frame, load
from ksim.foundation.errors import DataError

#: Where the table lies, seen from the folder of the measured runs.
BESIDE = ("silicon_join.csv", "../cluster/silicon_join.csv")
#: The table of runs whose engines prefill and decode; it lies beside that of worker counts.
WHOLE = "silicon_join_agg.csv"
_SIDES = ("prefill", "decode")
_COUNTS = ("workers", "gpus_per_worker", "ep")


@frozen
class Workers:
    """The workers that prefill, or those that decode: how many, and how the GPUs of each share the work.

    With `attention_dp`, each GPU of a worker has a replica of the attention.  `experts` is the worker's degree of
    expert parallelism, 0 or 1 without any.
    """

    count: int
    gpus: int
    experts: int
    attention_dp: bool

    @property
    def ranks(self) -> int:
        """Schedulers in all workers."""
        return self.count * (self.gpus if self.attention_dp else 1)

    @property
    def shape(self) -> str:
        """How a worker's GPUs share the work, such as "dep8", as TensorRT-LLM's recipes call it."""
        experts = "e" if self.experts > 1 else ""
        return f"{'d' if self.attention_dp else 't'}{experts}p{self.gpus}"

    @property
    def settings(self) -> dict[str, Any]:
        """How the GPUs of a worker share its work, as engine settings."""
        settings: dict[str, Any] = ({"tensor_parallel_size": 1, "data_parallel_size": self.gpus} if self.attention_dp
                                    else {"tensor_parallel_size": self.gpus})
        if self.experts > 1:
            settings["enable_expert_parallel"] = True
            if self.experts != self.gpus:
                settings["expert_parallel_size"] = self.experts
        return settings


@frozen
class Split:
    """What is known of a disaggregated run's deployment: `tier` says from where, and so how sure it is.

    `prefill` and `decode` are None where the numbers of workers are not known.  `speculation` is "none", the method,
    or "" where that is not known.
    """

    tier: str
    speculation: str
    prefill: Workers | None = None
    decode: Workers | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all workers; 0 where their numbers are not known."""
        return sum(side.count * side.gpus for side in (self.prefill, self.decode) if side)


@frozen
class Whole:
    """What is known of a run whose engine prefills and decodes: `speculation` as in `Split`, and its GPUs."""

    speculation: str
    worker: Workers


#: A run that the table does not name.
UNKNOWN = Split("unmatched", "")


def beside(path: Path) -> Path | None:
    """The table that belongs to the measured runs at *path*, if it is there."""
    return next((table for name in BESIDE if (table := path.parent / name).exists()), None)


def read(path: Path) -> dict[str, Split]:
    """The deployment of each run by its id; raises DataError for a missing column or an impossible value."""
    frame = load(path)
    needed = ("id", "tier", "spec_method",
              *(f"{side}_{name}" for side in _SIDES for name in (*_COUNTS, "dp_attention")))
    if missing := [name for name in needed if name not in frame]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of worker counts has {', '.join(needed)}")
    prefill, decode = (_workers(frame, side) for side in _SIDES)
    ids, tiers, methods = (frame.texts(name).tolist() for name in ("id", "tier", "spec_method"))
    return {name: Split(tier or "unmatched", method, *sides) for name, tier, method, *sides in
            zip(ids, tiers, methods, prefill, decode, strict=True)}


def read_whole(path: Path) -> dict[str, Whole]:
    """What is known of each run whose engine prefills and decodes, by its id; raises DataError as `read` does."""
    frame = load(path)
    needed = ("id", "spec_method", "tp", "ep", "dp_attention")
    if missing := [name for name in needed if name not in frame]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of deployments has {', '.join(needed)}")
    ids, methods, replicated = (frame.texts(name).tolist() for name in ("id", "spec_method", "dp_attention"))
    gpus, experts = (frame.numbers(name).tolist() for name in ("tp", "ep"))
    return {name: Whole(method, Workers(1, int(count), int(groups), replicas.lower() in ("true", "1")))
            for name, method, count, groups, replicas in zip(ids, methods, gpus, experts, replicated, strict=True)
            if not isnan(count) and not isnan(groups)}


def _workers(frame: Frame, side: str) -> Iterator[Workers | None]:
    """The workers of one *side*, run by run; None where a number is missing."""
    counts = {name: frame.numbers(f"{side}_{name}").tolist() for name in _COUNTS}
    replicated = frame.texts(f"{side}_dp_attention").tolist()
    for place, text in enumerate(replicated):
        row = {name: values[place] for name, values in counts.items()}
        if any(isnan(value) for value in row.values()) or not text:
            yield None
            continue
        _check(frame, side, row, place)
        yield Workers(int(row["workers"]), int(row["gpus_per_worker"]), int(row["ep"]), text.lower() in ("true", "1"))


def _check(frame: Frame, side: str, row: Mapping[str, float], place: int) -> None:
    for name, value in row.items():
        least = 0 if name == "ep" else 1  # some tables have 0 where experts are not dealt out
        if value < least or value != int(value):
            raise DataError(str(frame.path), f"{frame.unit} {frame.places[place]}: column '{side}_{name}' is {value:g};"
                                             f" expected a whole number from {least} on")
