"""Work that is the same on every machine: how many lines of Python run, and how much memory they hold at most."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Whose lines are counted; of other modules, which are other people's, only the calls are.
OURS = "ksim"


def lines(action: Callable[[], object]) -> int:
    """How many lines *action* runs, each time round a loop anew; the same in every run, once what it caches is there.

    Lines of one statement count as one where nothing comes back to them.
    """
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line if frame.f_globals.get("__name__", "").startswith(OURS) else None

    tracing = sys.gettrace()
    sys.settrace(call)
    try:
        action()
    finally:
        sys.settrace(tracing)
    return count


def peak(action: Callable[[], object]) -> int:
    """The most bytes of Python objects and arrays that *action* has at once, beyond those from before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
