"""Who waits for whom: what each GPU of a run did while its steps went on, and what steps' critical path consists of.

Runs with `detail = "rank"` have it, where GPUs may differ.  A step of a pipeline stage lasts from when the first of its
ranks begins until the last one is done.  Each rank computes, is in collectives, waits for others, or begins late.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from ksim.flow.events import WAITS, RanksMet, RankTimeline
from ksim.flow.log import Columns, Log
from ksim.foundation.errors import DataError
from ksim.foundation.files import parquet_table
from ksim.results.arrow import table
from ksim.results.numbers import RANK_WAITS, Summary
from ksim.results.steps import Floats, Ints, each, ratio

__all__ = ["FILE", "PARTS", "RankSteps", "RankTotals", "Ranks", "ShownStep", "rank_rows", "wait_column"]

#: The file of a run's directory that has a row for each step, stage and GPU.
FILE = "ranks.parquet"
#: What a GPU does during a run: it computes, takes part in collectives, begins a step later than others, waits for
#: others by cause, or has no step.
PARTS = ("busy", "collectives", "late", *WAITS, "idle")
#: Ranks that wait less than this share of a step longer than another are as late as that.
_TIE = 1e-9
_HOST = WAITS.index("host")


def wait_column(cause: str) -> str:
    """The column of ranks.parquet with the seconds that a GPU waited for *cause*."""
    return f"wait_{cause}_s"


@define(eq=False, slots=False)
class RankSteps:
    """The steps of one pipeline stage, of an engine or of all engines that share experts, of which `engine` is first.

    `gpus` are the numbers of its ranks in the fleet, (ranks,).  Of each step there are `start` and `end` in seconds,
    (steps,), the `busy` seconds of each rank, (steps, ranks), and those that it waited for others, by the causes of
    `WAITS`, (steps, causes, ranks).

    A rank's waits are the seconds by which the last one took longer, so they add up to what it waited, and one of them
    is negative where it took longer itself.
    """

    engine: int
    stage: int
    gpus: Ints
    start: Floats
    end: Floats
    busy: Floats
    waits: Floats

    @cached_property
    def seconds(self) -> Floats:
        """How long each step lasted: (steps,).

        Of engines that share experts, one may be in the next step before all have left this one, which ends then.
        """
        seconds: Floats = np.minimum(self.end, np.append(self.start[1:], np.inf)) - self.start
        return seconds

    @cached_property
    def waited(self) -> Floats:
        """Seconds that each rank waited for others: (steps, ranks)."""
        waited: Floats = self.waits.sum(axis=1)
        return waited

    @cached_property
    def late(self) -> Floats:
        """Seconds by which each rank began later than the first: (steps, ranks).

        Ranks wait for the host of the last one as much less as their own was late, and the first was not.
        """
        waits: Floats = self.waits[:, _HOST]
        late: Floats = waits.max(axis=1, keepdims=True, initial=0.0) - waits
        return late

    @cached_property
    def collectives(self) -> Floats:
        """Seconds of each rank in collectives, which are the rest of a step: (steps, ranks)."""
        return np.maximum(self.seconds[:, None] - self.busy - self.waited - self.late, 0.0)

    @cached_property
    def last(self) -> Floats:
        """The share of each step in which each rank was the last, for which others waited: (steps, ranks).

        Ranks that are as late as each other share it; where nobody waits for anybody, nobody is the last.
        """
        least = self.waited.min(axis=1, keepdims=True)
        ties = self.waited <= least + _TIE * np.maximum(self.seconds, 0.0)[:, None]
        ties[ties.all(axis=1)] = False
        last: Floats = ties / np.maximum(ties.sum(axis=1, keepdims=True), 1)
        return last

    @cached_property
    def path(self) -> dict[str, float]:
        """The seconds of all steps by what their critical path consists of: kernels, collectives, causes of waiting.

        The path is that of the last rank.  Kernels are what it would compute if it were as the median of all ranks; by
        each cause, there is what the median rank waits; of an even number, that is the faster one of both.
        """
        if not len(self.start):
            return dict.fromkeys(("kernels", "collectives", *WAITS), 0.0)
        rows, last = np.arange(len(self.start)), self.waited.argmin(axis=1)
        causes = np.sort(self.waits, axis=2)[:, :, len(self.gpus) // 2].sum(axis=0)
        together = float(self.collectives[rows, last].sum())
        kernels = float(self.seconds.sum()) - together - float(causes.sum())
        return {"kernels": kernels, "collectives": together, **dict(zip(WAITS, causes.tolist(), strict=True))}


@define(eq=False, slots=False)
class Ranks:
    """All GPUs of a run that may differ, by the stages that they are in; the run took `duration` seconds."""

    stages: Sequence[RankSteps]
    duration: float

    @classmethod
    def of(cls, log: Log, duration: float) -> "Ranks":
        """Those of the run in *log*; none where no GPU may differ from others."""
        columns = log.columns(RanksMet)
        return cls([_stage(columns, np.flatnonzero(which)) for which in _by_stage(columns["engine"], columns["stage"])],
                   duration)

    @classmethod
    def read(cls, directory: Path, duration: float) -> "Ranks | None":
        """Those of the run in *directory*, which has so many seconds; None where it has none.

        Raises DataError for a file that is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            found = parquet_table(path)
            rows = {name: found[name].to_numpy() for name in _COLUMNS}
            return cls([_saved({name: column[which] for name, column in rows.items()})
                        for which in _by_stage(rows["engine"], rows["stage"])], duration)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise DataError(str(path), f"cannot be read as a table of ranks ({error}); run it again") from None

    def __len__(self) -> int:
        return sum(len(stage.gpus) for stage in self.stages)

    def _joined(self, name: str) -> Any:
        return np.concatenate([np.zeros(0), *(getattr(stage, name).sum(axis=0) for stage in self.stages)])

    @cached_property
    def gpus(self) -> Ints:
        """The number of each GPU in the fleet; all that follows is in their order."""
        return np.concatenate([np.zeros(0, np.int64), *(stage.gpus for stage in self.stages)])

    @cached_property
    def engines(self) -> Ints:
        """The engine of each GPU, or the first of those with which it shares experts."""
        return np.repeat(each(self.stages, lambda stage: stage.engine), each(self.stages, lambda one: len(one.gpus)))

    @cached_property
    def pipeline_stages(self) -> Ints:
        """The pipeline stage of each GPU."""
        return np.repeat(each(self.stages, lambda stage: stage.stage), each(self.stages, lambda one: len(one.gpus)))

    @cached_property
    def seconds(self) -> dict[str, Floats]:
        """The seconds of each GPU by `PARTS`, each (ranks,): they add up to the duration of the run."""
        waits = [stage.waits.sum(axis=0) for stage in self.stages]
        by_cause = np.concatenate([np.zeros((len(WAITS), 0)), *waits], axis=1)
        parts = {"busy": self._joined("busy"), "collectives": self._joined("collectives"), "late": self._joined("late"),
                 **dict(zip(WAITS, by_cause, strict=True))}
        return {**parts, "idle": np.maximum(self.duration - sum(parts.values()), 0.0)}

    @property
    def waited(self) -> Floats:
        """The seconds that each GPU waited for others."""
        waited: Floats = np.sum([self.seconds[cause] for cause in WAITS], axis=0)
        return waited

    @cached_property
    def step_seconds(self) -> float:
        """The seconds of all steps of all stages."""
        return float(sum(stage.seconds.sum() for stage in self.stages))

    @cached_property
    def last(self) -> Floats:
        """The share of the seconds of its stage's steps in which each GPU was the last, for which others waited."""
        parts = [stage.seconds @ stage.last / max(float(stage.seconds.sum()), 1e-300) for stage in self.stages]
        return np.concatenate([np.zeros(0), *parts])

    @cached_property
    def path(self) -> dict[str, float]:
        """The seconds of all steps by what their critical path consists of (`RankSteps.path`)."""
        paths = [stage.path for stage in self.stages]
        return {name: sum(path[name] for path in paths) for name in ("kernels", "collectives", *WAITS)}

    @cached_property
    def order(self) -> Ints:
        """The places of the GPUs, those for which others wait most first."""
        return np.lexsort((self.gpus, self.waited, -np.round(self.last, 12)))

    def shares(self) -> dict[str, float]:
        """The shares of the time of all these GPUs by `PARTS`."""
        whole = self.duration * len(self)
        return {name: float(seconds.sum()) / whole if whole else 0.0 for name, seconds in self.seconds.items()}


def _by_stage(engine: Ints, stage: Ints) -> Iterator[Any]:
    """Which rows are of each engine's stage, one after the other."""
    for one, other in np.unique(np.stack([engine, stage], axis=1), axis=0).tolist():
        yield (engine == one) & (stage == other)


def _stage(columns: Columns, rows: Ints) -> RankSteps:
    first = rows[0]
    return RankSteps(int(columns["engine"][first]), int(columns["stage"][first]),
                     np.asarray(columns["gpus"][first], np.int64), start=columns["start"][rows],
                     end=columns["time"][rows], busy=np.stack(columns["busy"][rows].tolist()),
                     waits=np.stack(columns["waits"][rows].tolist()))


def _saved(rows: Mapping[str, Any]) -> RankSteps:
    ranks = len(np.unique(rows["gpu"]))
    waits = np.stack([rows[wait_column(cause)].reshape(-1, ranks) for cause in WAITS], axis=1)
    return RankSteps(int(rows["engine"][0]), int(rows["stage"][0]), rows["gpu"][:ranks], rows["start_s"][::ranks],
                     rows["end_s"][::ranks], busy=rows["busy_s"].reshape(-1, ranks), waits=waits)


_COLUMNS = ("engine", "stage", "start_s", "end_s", "gpu", "busy_s", *map(wait_column, WAITS))


def rank_rows(columns: Columns) -> pa.Table:
    """One row per step, stage and GPU, from events of kind `RanksMet`, of which there are some; times in seconds."""
    sizes = each(columns["gpus"].tolist(), len)
    of_steps = {"engine": columns["engine"], "stage": columns["stage"], "start_s": columns["start"],
                "end_s": columns["time"]}
    waits = np.concatenate(columns["waits"].tolist(), axis=1)
    return table({
        **{name: np.repeat(column, sizes) for name, column in of_steps.items()},
        "gpu": np.concatenate(columns["gpus"].tolist()).astype(np.int64),
        "busy_s": np.concatenate(columns["busy"].tolist()).astype(np.float64),
        **{wait_column(cause): np.ascontiguousarray(row) for cause, row in zip(WAITS, waits, strict=True)}})


@define(eq=False)
class RankTotals:
    """The seconds of all ranks so far, by cause, that they waited for others: (causes,)."""

    waits: Floats = field(factory=lambda: np.zeros(len(WAITS)))

    def add(self, columns: Columns) -> None:
        """Add events of kind `RanksMet`."""
        for waits in columns["waits"].tolist():
            self.waits += waits.sum(axis=1)

    def summary(self, gpus: int, duration: float) -> Summary:
        """The numbers of summary.json that runs have whose GPUs may differ."""
        whole = gpus * duration
        return {"rank_wait_share": ratio(float(self.waits.sum()), whole),
                **{RANK_WAITS[cause]: ratio(float(seconds), whole)
                   for cause, seconds in zip(WAITS, self.waits, strict=True)}}


@frozen(eq=False)
class ShownStep:
    """One step of a stage rank by rank, as a picture shows it; times are in seconds from its start.

    Its ranks are on `gpus`, (ranks,), and of each meeting there is when a rank `came` and `left`, and when its `latest`
    came, (ranks, meetings), nan where a rank had fewer.  `names` has the collective of each meeting.

    Where experts are drawn, `loads` has the rows of the fullest, the median and the emptiest rank of the stage over the
    mean, (3, layers); else it has no layers.
    """

    engine: int
    stage: int
    start: float
    seconds: float
    gpus: Ints
    names: Sequence[str]
    started: Floats
    came: Floats
    latest: Floats
    left: Floats
    loads: Floats = field(factory=lambda: np.zeros((3, 0)))

    @classmethod
    def slowest(cls, log: Log, most: int) -> "ShownStep | None":
        """Of the steps of *log* that have a timeline, the one in which ranks waited longest, with *most* ranks: those
        that waited least, and those that waited most.  None where none has a timeline."""
        columns = log.columns(RanksMet)
        known = [row for row, timeline in enumerate(columns["timeline"].tolist()) if timeline is not None]
        if not known:
            return None
        row = max(known, key=lambda row: float(columns["waits"][row].sum(axis=0).mean()))
        order = np.argsort(columns["waits"][row].sum(axis=0), kind="stable")
        rows = np.sort(order if len(order) <= most else np.concatenate([order[:most // 2], order[-(most // 2):]]))
        rows = rows[np.argsort(columns["gpus"][row][rows], kind="stable")]
        return cls._of({name: column[row] for name, column in columns.items()}, rows)

    @classmethod
    def _of(cls, met: Mapping[str, Any], rows: Ints) -> "ShownStep":
        start, timeline = float(met["start"]), met["timeline"]
        assert isinstance(timeline, RankTimeline)
        came, latest, left = (np.asarray(column, float)[rows] - start
                              for column in (timeline.came, timeline.latest, timeline.left))
        return cls(int(met["engine"]), int(met["stage"]), start, float(met["time"]) - start,
                   gpus=np.asarray(met["gpus"])[rows], names=list(timeline.names),
                   started=np.asarray(timeline.started, float)[rows] - start, came=came, latest=latest, left=left,
                   loads=_loads(timeline.rows))

    @property
    def ready(self) -> Floats:
        """When each rank began to compute for each meeting: (ranks, meetings)."""
        return np.concatenate([self.started[:, None], self.left[:, :-1]], axis=1)

    @property
    def waiting(self) -> Floats:
        """Seconds that each rank waited in each meeting until the last one came: (ranks, meetings)."""
        return np.maximum(self.latest - self.came, 0.0)

    def content(self) -> dict[str, Any]:
        """The step for a JSON file, to the nanosecond."""
        def listed(column: Floats) -> list[Any]:
            return [None if np.isnan(value) else round(value, 9) for value in column.ravel().tolist()]

        return {"engine": self.engine, "stage": self.stage, "start": self.start, "seconds": self.seconds,
                "gpus": self.gpus.tolist(), "names": list(self.names),
                **{name: listed(getattr(self, name)) for name in ("started", "came", "latest", "left")},
                **({"loads": np.round(self.loads, 5).tolist()} if self.loads.size else {})}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> "ShownStep":
        """The step that `content` gave."""
        shape = len(content["gpus"]), len(content["names"])
        started, *rest = (np.array([np.nan if value is None else value for value in content[name]], float)
                          for name in ("started", "came", "latest", "left"))
        came, latest, left = (column.reshape(shape) for column in rest)
        return cls(content["engine"], content["stage"], content["start"], content["seconds"],
                   gpus=np.array(content["gpus"]), names=content["names"], started=started, came=came, latest=latest,
                   left=left, loads=np.array(content.get("loads", np.zeros((3, 0))), float))


def _loads(rows: Any) -> Floats:
    """The fullest, the median and the emptiest of *rows*, (layers, ranks), over the mean: (3, layers)."""
    if rows is None:
        return np.zeros((3, 0))
    by_rank = np.asarray(rows, float)
    chosen = np.stack([by_rank.max(axis=1), np.median(by_rank, axis=1), by_rank.min(axis=1)])
    loads: Floats = chosen / np.maximum(by_rank.mean(axis=1), 1e-300)
    return loads
