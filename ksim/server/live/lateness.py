"""How late tokens leave, and what is said of it."""

import logging
from math import ceil

from attrs import define, field

__all__ = ["Lateness"]

LOGGER = logging.getLogger("ksim.server")
#: Tokens that are later than this, in seconds, are worth a word.
TOLERANCE = 5e-3
#: So many late tokens may be chance.
FEW = 50
#: For so many seconds the worst case counts, and so long nothing is said again.
PERIOD = 10.0


@define(eq=False)
class Lateness:
    """By how many seconds of the wall clock tokens leave after their simulated times: `tokens` in all, `late` ones."""

    tokens: int = field(default=0, init=False)
    late: int = field(default=0, init=False)
    _period: int = field(default=-1, init=False)
    _worst: float = field(default=0.0, init=False)  # in this period
    _before: float = field(default=0.0, init=False)  # and in the one before
    _start: tuple[int, int] = field(default=(0, 0), init=False)  # tokens, and late ones, when this period began
    _said: bool = field(default=False, init=False)  # in this period

    def note(self, seconds: float, tokens: int, wall: float, first: float | None = None) -> None:
        """By *wall* so many *tokens* have left, one after the other, the last of them so many *seconds* late.

        The *first* one was as late, if nothing else is said.
        """
        self._turn(wall)
        self.tokens += tokens
        self._worst = max(self._worst, seconds)
        if seconds > TOLERANCE:
            first = seconds if first is None else first
            share = 1.0 if first >= TOLERANCE else (seconds - TOLERANCE) / (seconds - first)
            self.late += ceil(tokens * share)
            self._warn()

    def _warn(self) -> None:
        """Say it once in a period if more than one in a hundred of its tokens are late, and more than a few."""
        tokens, late = self.tokens - self._start[0], self.late - self._start[1]
        if late > max(FEW, tokens / 100) and not self._said:
            self._said = True
            LOGGER.warning("ksim: cannot keep up: %d of %d tokens left more than %.0f ms after their simulated times,"
                           " up to %.0f ms; latencies that clients measure are too long", late, tokens,
                           1e3 * TOLERANCE, 1e3 * self._worst)

    def recent(self, wall: float) -> float:
        """The worst case of this period and the one before."""
        self._turn(wall)
        return max(self._worst, self._before)

    def _turn(self, wall: float) -> None:
        """Begin a new period when it is time."""
        if (period := int(wall // PERIOD)) != self._period:
            self._before = self._worst if period == self._period + 1 else 0.0
            self._period, self._worst, self._said = period, 0.0, False
            self._start = self.tokens, self.late
