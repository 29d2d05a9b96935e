"""Settings for a process that belongs to ksim alone, and runs without pauses of Python's cyclic garbage collector."""

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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


class Terminated(SystemExit):
    """A signal ended the command; `code` is the exit status, `message` says what became of its work.

    Its arguments make it again, as SimPy does with what is raised inside a process.
    """

    code: int

    def __init__(self, code: int, message: str):
        super().__init__(code, message)
        self.code, self.message = code, message


@contextmanager
def dedicated() -> Iterator[None]:
    """Pause the cyclic garbage collector, and give BLAS one thread if NumPy is not loaded yet.

    A run's matrices are small, so further BLAS threads only spin: they took 0.08 s of the quickstart's 2.2 s of CPU.
    `OPENBLAS_NUM_THREADS` overrides this.

    The last collection at exit is skipped too.  It took 0.25 s of CPU after 5,000 requests, and 0.45 s where their
    results were written.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with paused():
        yield


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that temporary files and worker processes are cleaned up as after Ctrl-C.

    A second SIGTERM does not interrupt the cleaning up.  A handler that is installed already stays, and only the main
    thread can handle signals.
    """
    if (threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL):
        yield
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Terminated(128 + number, "terminated; nothing was written")
