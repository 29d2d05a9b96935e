"""Python's cyclic garbage collector, kept out of the way of long runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define

#: Once so many objects were made in pauses, cycles among them are looked for before the next one.
_MANY = 1_000_000


@define
class _Overdue:
    """How many objects of earlier pauses nobody has looked through."""

    objects: int = 0


_OVERDUE = _Overdue()


@contextmanager
def paused() -> Iterator[None]:
    """Collect no cycles meanwhile.

    A run makes millions of records, keeps them, and makes next to no cycles: looking for some took a third of
    its time (w5000_qps6.45: 4.2 s of CPU, 2.7 s without) and found none (146 MB with, 147 MB without).  Nor are
    they looked through at once afterwards, as all that is new: they count as old.
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
    """Look through the objects of earlier pauses, where there are many."""
    if _OVERDUE.objects > _MANY:
        _OVERDUE.objects = 0
        gc.collect()


def _age() -> None:
    """Take all objects for old ones, which are looked through rarely."""
    _OVERDUE.objects += gc.get_count()[0]
    if not gc.get_freeze_count():  # else there are some that somebody wants frozen for longer
        gc.freeze()
        gc.unfreeze()
