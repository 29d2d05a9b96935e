"""What happened in a run, to compare it with what happened in another."""

from typing import Any

from attrs import evolve, fields

from ksim.flow.batch import Batch, Contexts
from ksim.flow.costs import ClockScaling
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
from ksim.flow.steps import StepCost

#: What may be off by rounding: whoever is priced beside others, or waits by another sum, differs in the last bits.
ROUNDED = {"time", "scheduled", "prepared", "start", "end", "taken", "scalings", "step_costs"}


def happenings(log: Log) -> list[Event]:
    """All events, kind by kind in the order of their times."""
    return [event for kind in (Arrived, Routed, Received, Rejected, Admitted, Preempted, Stepped, Emitted, Finished)
            for event in sorted(log.of(kind), key=_moment)]


def _moment(event: Any) -> tuple[Any, ...]:
    """What orders events; which of those at one time comes first is no fact."""
    return event.time, getattr(event, "engine", 0), getattr(event, "request_id", 0)


def facts(log: Log) -> list[tuple[Any, ...]]:
    """What happened, but for the times."""
    return [(type(event), *(_plain(getattr(event, field.name)) for field in fields(type(event))
                            if field.name not in ROUNDED), *_kernels(event)) for event in happenings(log)]


def _plain(value: Any) -> Any:
    """Contexts as numbers: how they split into offsets and a shift goes by the turns before, also by empty ones."""
    return (tuple(value.contexts), evolve(value, contexts=Contexts())) if isinstance(value, Batch) else value


def _kernels(event: Event) -> list[tuple[str, str, int]]:
    """What ran in a step, and how often; waiting for other ranks, of however little, is none of it."""
    lanes = event.step_costs if isinstance(event, Stepped) else ()
    return [(span.label, str(span.shape), count) for lane in lanes for span, count in lane.counted()
            if span.label != "wait_for_ranks"]


def times(log: Log) -> list[float]:
    """The numbers that `facts` leaves out."""
    return [number for event in happenings(log) for field in fields(type(event)) if field.name in ROUNDED
            for number in _numbers(getattr(event, field.name))]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, tuple):
        return [number for part in value for number in _numbers(part)]
    if isinstance(value, ClockScaling):
        return [value.time, value.energy, value.power]
    return [value.seconds, value.joules, value.flops, value.bytes] if isinstance(value, StepCost) else [value]
