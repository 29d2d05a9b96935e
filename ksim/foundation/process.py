"""Settings for a process that belongs to ksim alone, such as a command: a library must not change a user's own."""

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ksim.foundation import garbage


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
    with garbage.paused():
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
