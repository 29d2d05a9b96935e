"""How far a run has come: a progress bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from ksim.cli.terminal import moves

#: Requests between two looks at the clock, and seconds between two lines where there is no terminal.
_EVERY, _PAUSE = 100, 30.0


class Progress:
    """Counts the requests of a run that have ended, out of about *total*, on standard error.

    On a terminal, a bar shows what the run does, how much is done, and the time left.  Elsewhere, a line says so every
    half minute.  A *quiet* run shows nothing.  *what* is counted may be something else, such as the runs of a study;
    the clock is looked at after *every* so many.
    """

    def __init__(self, total: int | None, quiet: bool, what: str = "requests", every: int = _EVERY):
        self._total, self._ended, self._what, self._every = total, 0, what, every
        self._bar: Any = None
        self._begin = self._said = time.monotonic()
        self._quiet, self._terminal = quiet, moves(sys.stderr)

    def __enter__(self) -> "Progress":
        if self._terminal and not self._quiet:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                            console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading" if self._what == "requests" else self._what, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one that has ended."""
        self._ended += 1
        if self._ended == 1 or self._ended % self._every == 0:
            self._show()

    def writing(self) -> None:
        """Show that all requests have ended, and the run is being written."""
        if self._bar is not None:
            self._bar.update(self._task, description="writing", completed=self._ended, total=self._ended)

    def _show(self) -> None:
        if self._bar is not None:
            total = self._total and max(self._total, self._ended)
            self._bar.update(self._task, description=f"{self._what} ended", completed=self._ended, total=total)
        elif not self._quiet and not self._terminal and time.monotonic() > self._said + _PAUSE:
            self._said = time.monotonic()
            print(f"ksim: {self._line(self._said - self._begin)}", file=sys.stderr)

    def _line(self, seconds: float) -> str:
        done = f"{self._ended:,} {self._what} ended after {seconds:,.0f} s"
        if not self._total or self._ended >= self._total:
            return done
        left = seconds * (self._total - self._ended) / self._ended
        return f"{done}, {self._ended / self._total:.0%} of about {self._total:,}; about {duration(left)} left"


def duration(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
