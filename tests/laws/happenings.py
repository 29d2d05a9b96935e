"""What happened in a run, to compare it with what happened in another."""

from typing import Any

from attrs import fields

from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    Event,
    Finished,
    Preempted,
    Received,
    Rejected,
    Routed,
    Stepped,
)
from ksim.flow.log import Log
from ksim.flow.timeline import Pace

TIMES = {"time", "scheduled", "prepared", "start", "end", "taken", "paces"}


def happenings(log: Log) -> list[Event]:
    """All events, kind by kind in the order of their times."""
    return [event for kind in (Arrived, Routed, Received, Rejected, Admitted, Preempted, Stepped, Emitted, Finished)
            for event in sorted(log.of(kind), key=lambda event: (event.time, getattr(event, "engine", 0)))]


def facts(log: Log) -> list[tuple[Any, ...]]:
    """What happened, but for the times."""
    return [(type(event), *(getattr(event, field.name) for field in fields(type(event)) if field.name not in TIMES))
            for event in happenings(log)]


def times(log: Log) -> list[float]:
    def of(event: Event) -> list[float]:
        found = [getattr(event, field.name) for field in fields(type(event)) if field.name in TIMES]
        values = [part for value in found for part in (value if isinstance(value, tuple) else (value,))]
        return [number for value in values
                for number in ((value.time, value.energy, value.power) if isinstance(value, Pace) else (value,))]

    return [time for event in happenings(log) for time in of(event)]
