"""Python's cyclic garbage collector, paused during runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define

#: So many objects made during pauses are collected before the next pause.
_MANY = 1_000_000


@define
class _Overdue:
    """How many objects of earlier pauses were never collected; global, as the collector itself is."""

    objects: int = 0


_OVERDUE = _Overdue()


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector.

    A run makes millions of records, keeps them, and makes next to no cycles.  Collecting took a third of its time
    (w5000_qps6.45: 4.2 s of CPU, 2.7 s without) and freed nothing (146 MB with, 147 MB without).  Afterwards the
    records count as old, so the next collection of young objects does not scan them.
    """
    if not gc.isenabled():
        yield
        return
    _catch_up()
    gc.disable()
    try:
        yield
    finally:
        _age()
        gc.enable()


def _catch_up() -> None:
    """Collect the objects of earlier pauses if there are many."""
    if _OVERDUE.objects > _MANY:
        _OVERDUE.objects = 0
        gc.collect()


def _age() -> None:
    """Move all objects to the oldest generation, which is collected rarely."""
    _OVERDUE.objects += gc.get_count()[0]
    if not gc.get_freeze_count():  # else unfreezing would undo what somebody else froze
        gc.freeze()
        gc.unfreeze()
