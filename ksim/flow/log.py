"""The log: what happened, kind by kind, as columns."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from attrs import fields
from numpy.typing import NDArray

from ksim.flow.events import EngineBuilt, Event, LinkBuilt, StepBlock, Stepped

E = TypeVar("E", bound=Event)
Columns = dict[str, NDArray[Any]]

#: So many events of a kind are kept as they came before they become columns, which take a tenth of the memory.
_BLOCK = 1 << 14
_TYPES: dict[Any, Any] = {float: np.float64, int: np.int64, bool: np.bool_}


class Log:
    """All events, and the engines they happened to.

    Events of a kind may come in any order, as when one engine is played ahead of another; they are told in the order
    of their time.  Steps come one by one, or many as a `StepBlock`.
    """

    def __init__(self, engines: Iterable[EngineBuilt] = (), events: Iterable[Event] = ()) -> None:
        self.engines = list(engines)
        self.links: list[LinkBuilt] = []
        #: Whether a gateway may hold requests back, or refuse them.
        self.gated = False
        #: Whether requests name workloads of a mix, or one of several models.
        self.mixed = False
        #: By when steps of each engine had ended that are no longer in the log.
        self.before: dict[int, float] = {}
        self._recent: dict[type[Event], list[Any]] = defaultdict(list)
        self._blocks: dict[type[Event], list[Columns]] = defaultdict(list)
        self._step_blocks: list[StepBlock] = []
        for event in events:
            self.add(event)

    @classmethod
    def of_columns(cls, engines: Iterable[EngineBuilt], events: Mapping[type[Event], Columns],
                   step_blocks: Iterable[StepBlock], before: Mapping[int, float]) -> "Log":
        """A log of events that are columns already, and of the steps after those that ended *before*."""
        log = cls(engines)
        log.before |= before
        log._blocks |= {kind: [columns] for kind, columns in events.items()}
        log._step_blocks += step_blocks
        return log

    @classmethod
    def joined(cls, engines: Iterable[EngineBuilt], logs: Sequence["Log"]) -> "Log":
        """The events of all *logs*; those of one time are in the order of their requests' ids."""
        joined = cls(engines)
        joined.gated, joined.mixed = any(log.gated for log in logs), any(log.mixed for log in logs)
        joined.links += {link.link: link for log in logs for link in log.links}.values()
        for kind in {kind for log in logs for kind in (*log._blocks, *log._recent)} - {Stepped}:
            parts = [log.columns(kind) for log in logs]
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            order = np.argsort(_ids(columns), kind="stable")
            joined._blocks[kind].append({name: column[order] for name, column in columns.items()})
        joined._step_blocks += [block for log in logs for block in log.step_blocks]
        return joined

    def add(self, event: Event) -> None:
        """Take in one event."""
        recent = self._recent[type(event)]
        recent.append(event)
        if len(recent) == _BLOCK:
            self._settle(type(event))

    def extend(self, kind: type[Event], columns: Columns) -> None:
        """Take in events of a *kind* other than `Stepped`, as columns of (events,) by the names of the fields."""
        self._settle(kind)
        self._blocks[kind].append(columns)

    def has(self, kind: type[Event]) -> bool:
        """Whether there are events of this *kind*, other than `Stepped`."""
        return bool(self._recent.get(kind) or self._blocks.get(kind))

    def record(self, block: StepBlock) -> None:
        """Take in consecutive steps of an engine."""
        self._step_blocks.append(block)

    @property
    def events(self) -> list[Event]:
        """All events in the order of their time; of those at one time, kind by kind."""
        kinds = sorted({*self._blocks, *self._recent, Stepped}, key=attrgetter("__name__"))
        return sorted(chain.from_iterable(map(self.of, kinds)), key=attrgetter("time"))

    def of(self, kind: type[E]) -> Iterator[E]:
        """The events of one kind in the order of their time; steps engine by engine, in the order of their index."""
        if kind is Stepped:
            return cast(Iterator[E], chain.from_iterable(block.steps() for block in self.step_blocks))
        return (kind(*row) for row in zip(*(column.tolist() for column in self.columns(kind).values()), strict=True))

    def columns(self, kind: type[Event]) -> Columns:
        """The events of a kind as columns of (events,), by the names of the fields; of any kind but `Stepped`."""
        self._settle(kind)
        names = {each.name: _TYPES.get(each.type, object) for each in fields(kind)}
        blocks = self._blocks[kind]
        columns = {name: np.concatenate([np.zeros(0, of), *(block[name] for block in blocks)])
                   for name, of in names.items()}
        time = columns["time"]
        if (time[1:] >= time[:-1]).all():
            return columns
        order = np.argsort(time, kind="stable")
        return {name: column[order] for name, column in columns.items()}

    @property
    def step_blocks(self) -> list[StepBlock]:
        """All steps, engine by engine, in the order of their index."""
        self._settle(Stepped)
        self._step_blocks.sort(key=attrgetter("engine", "first"))
        return self._step_blocks

    def _settle(self, kind: type[Event]) -> None:
        """Make columns of the recent events of one kind."""
        if recent := self._recent.pop(kind, []):
            if kind is Stepped:
                self._step_blocks += consecutive(recent)
            else:
                self._blocks[kind].append({each.name: _column(recent, each.name, each.type) for each in fields(kind)})


def consecutive(steps: Iterable[Stepped]) -> Iterator[StepBlock]:
    """Put *steps* of any engines, in any order, into as few step_blocks as there can be."""
    ordered = sorted(steps, key=attrgetter("engine", "index"))
    begin = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or not _follows(ordered[end - 1], ordered[end]):
            yield StepBlock.of(ordered[begin:end])
            begin = end


def _follows(step: Stepped, other: Stepped) -> bool:
    return (step.engine, step.index + 1, len(step.step_costs)) == (other.engine, other.index, len(other.step_costs))


def only(columns: Columns, which: NDArray[Any]) -> Columns:
    """The events in *which*: flags, or places."""
    return {name: column[which] for name, column in columns.items()}


def _ids(columns: Columns) -> NDArray[np.int64]:
    """The numbers of the requests, links or engines that the events belong to."""
    for name in ("request_id", "link", *(() if "request" in columns else ("engine",))):
        if name in columns:
            return columns[name]
    return np.array([request.id for request in columns["request"]], dtype=np.int64)


def _column(events: Sequence[Event], name: str, kind: Any) -> NDArray[Any]:
    values, of = map(attrgetter(name), events), _TYPES.get(kind, object)
    return np.fromiter(values, of, len(events))
