"""The log of a live fleet: events go to subscribers, and are kept only for a recording."""

from collections.abc import Callable
from typing import Any

from ksim.flow.events import Event, StepBlock
from ksim.flow.log import Log

__all__ = ["LiveLog"]


class LiveLog(Log):
    """Passes events to `subscribers` by their kind, and all of them to the log `kept`, if there is one."""

    def __init__(self, kept: Log | None = None) -> None:
        super().__init__()
        self.kept = kept
        self.subscribers: dict[type[Event], list[Callable[[Any], object]]] = {}
        if kept is not None:
            self.engines, self.links = kept.engines, kept.links

    def subscribe(self, kind: type[Event], subscriber: Callable[[Any], object]) -> None:
        """Have *subscriber* called with each event of this *kind* when it happens."""
        self.subscribers.setdefault(kind, []).append(subscriber)

    def add(self, event: Event) -> None:
        """Pass on one event."""
        for subscriber in self.subscribers.get(type(event), ()):
            subscriber(event)
        if self.kept is not None:
            self.kept.gated = self.gated
            self.kept.add(event)

    def record(self, block: StepBlock) -> None:
        """Refuse a block of steps: engines of a live fleet log their steps one by one."""
        raise AssertionError("an engine of a live fleet goes ahead of the clock")
