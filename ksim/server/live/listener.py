"""What the client of a live fleet gets to know about its request."""

from typing import Protocol

__all__ = ["Listener"]


class Listener(Protocol):
    """Is called with what happens to one request; times are in simulated seconds.

    Calls come when that time has come on the wall clock, never earlier.  They are made in the event loop, so they must
    be short.
    """

    def tokens(self, count: int, time: float, sequence: int) -> None:
        """The client gets *count* further tokens, all those of one step, of one of the request's `n` sequences."""
        ...

    def finished(self, reason: str, time: float) -> None:
        """All sequences have ended.  *reason* is "stop" or "length", that of the first sequence, or "error"."""
        ...

    def refused(self, why: str) -> None:
        """The request is refused, and no other call follows."""
        ...
