"""The log of a live fleet: what happens is told to those who listen, and kept only where a run is written."""

from collections.abc import Callable
from typing import Any

from ksim.flow.events import Event
from ksim.flow.log import Log
from ksim.flow.step_block import StepBlock

__all__ = ["LiveLog"]


class LiveLog(Log):
    """Tells `subscribers` of events by their kind, and `kept` of all, if there is such a log; nothing else stays."""

    def __init__(self, kept: Log | None = None) -> None:
        super().__init__()
        self.kept = kept
        self.subscribers: dict[type[Event], list[Callable[[Any], object]]] = {}
        if kept is not None:
            self.engines, self.links = kept.engines, kept.links

    def subscribe(self, kind: type[Event], subscriber: Callable[[Any], object]) -> None:
        """Have *subscriber* called with each event of this *kind*, when it happens."""
        self.subscribers.setdefault(kind, []).append(subscriber)

    def add(self, event: Event) -> None:
        """Tell of one event."""
        for subscriber in self.subscribers.get(type(event), ()):
            subscriber(event)
        if self.kept is not None:
            self.kept.gated = self.gated
            self.kept.add(event)

    def record(self, block: StepBlock) -> None:
        """Tell of steps: a live fleet's engines tell of them one by one."""
        raise AssertionError("an engine of a live fleet goes ahead of the clock")
