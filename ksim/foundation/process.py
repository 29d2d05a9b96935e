"""A process that does one thing and ends: what would be rude to do to a user's own."""

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ksim.foundation import collector


class Ended(SystemExit):
    """A signal ended the command; `code` is the exit status, `message` says what became of its work.

    Its arguments make it again, as SimPy does with what is raised inside a process.
    """

    code: int

    def __init__(self, code: int, message: str):
        super().__init__(code, message)
        self.code, self.message = code, message


@contextmanager
def alone() -> Iterator[None]:
    """Collect no cycles meanwhile, and let NumPy, where it is not loaded yet, have one thread.

    A run's matrices are small: further threads of BLAS do nothing but wait for work in a loop, which took 0.08 s of
    CPU of the quickstart's 2.2.  `OPENBLAS_NUM_THREADS` may say otherwise.

    When the process ends, Python would look for cycles once more among all that a run has left: 0.25 s of CPU after
    5,000 requests, 0.45 s where their results were written.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with collector.paused():
        yield


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Ended` where SIGTERM comes, so that temporary files and other processes are cleaned up as after Ctrl-C.

    A second SIGTERM does not disturb the cleaning up.  Whoever already handles or ignores the signal goes on doing so,
    and only a main thread can handle signals at all.
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
    raise Ended(128 + number, "terminated; nothing was written")
