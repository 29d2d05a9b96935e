"""What a live fleet tells of a request."""

from typing import Protocol

__all__ = ["Listener"]


class Listener(Protocol):
    """Hears of one request, in simulated seconds, once that time has come on the wall clock; never earlier.

    Calls come from within the event loop, so they must be short: they write to a socket, or wake a task.
    """

    def tokens(self, count: int, time: float, sequence: int) -> None:
        """The user has so many further tokens of the *sequence*, of the request's `n`; those of one step at once."""
        ...

    def finished(self, reason: str, time: float) -> None:
        """All sequences have ended: "stop" or "length" as the first of them did, or "error"; nothing follows."""
        ...

    def refused(self, why: str) -> None:
        """No engine serves it, for the reason given; nothing follows."""
        ...
