"""How late tokens leave, and the warning about it."""

import logging
from math import ceil

from attrs import define, field

__all__ = ["Lateness"]

LOGGER = logging.getLogger("ksim.server")
#: Seconds after which a token counts as late.
TOLERANCE = 5e-3
#: So many late tokens in a period cause no warning.
FEW = 50
#: Seconds of a period; there is one warning in a period at most.
PERIOD = 10.0


@define(eq=False)
class Lateness:
    """Counts the `tokens` that leave, and the `late` ones among them, by the wall clock."""

    tokens: int = field(default=0, init=False)
    late: int = field(default=0, init=False)
    _period: int = field(default=-1, init=False)
    _worst: float = field(default=0.0, init=False)  # in this period
    _before: float = field(default=0.0, init=False)  # and in the one before
    _start: tuple[int, int] = field(default=(0, 0), init=False)  # tokens, and late ones, before this period
    _warned: bool = field(default=False, init=False)  # in this period

    def note(self, seconds: float, tokens: int, wall: float, first: float | None = None) -> None:
        """So many *tokens* leave one after the other, the last one at *wall*, *seconds* after its simulated time.

        The *first* one was that late; by default, as late as the last.
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
        """Warn once in a period if more than 1 % of its tokens are late, and more than a few."""
        tokens, late = self.tokens - self._start[0], self.late - self._start[1]
        if late > max(FEW, tokens / 100) and not self._warned:
            self._warned = True
            LOGGER.warning("ksim: cannot keep up: %d of %d tokens left more than %.0f ms after their simulated times,"
                           " up to %.0f ms; latencies that clients measure are too long", late, tokens,
                           1e3 * TOLERANCE, 1e3 * self._worst)

    def recent(self, wall: float) -> float:
        """The worst lateness of this period and the one before."""
        self._turn(wall)
        return max(self._worst, self._before)

    def _turn(self, wall: float) -> None:
        """Begin a new period if *wall* is beyond this one."""
        if (period := int(wall // PERIOD)) != self._period:
            self._before = self._worst if period == self._period + 1 else 0.0
            self._period, self._worst, self._warned = period, 0.0, False
            self._start = self.tokens, self.late
