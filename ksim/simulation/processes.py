"""Independent pieces of work in several processes, which end when the work is interrupted or its owner is killed."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ksim.foundation.errors import KsimError

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], items: Sequence[T], jobs: int) -> Generator[R, None, None]:
    """Yield *work* of each of *items*, in their order, done by *jobs* processes, or by this one where that is 1.

    *work* is a function of a module, and like *items* and results it can be pickled.  Raises what *work* raises, and
    KsimError where a process is killed.
    """
    if min(jobs, len(items)) < 2:
        yield from map(work, items)
        return
    # Most runs have one process, and are over before these have paid for their loading.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(items)), multiprocessing.get_context("spawn"), _begin)
    try:
        with _interrupts_held():
            futures = [pool.submit(work, item) for item in items]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise KsimError("a process was killed in the midst of its work, as systems do that run out of memory;"
                        " try fewer --jobs") from error
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait, also in processes started meanwhile, which would print where it found them importing."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _begin() -> None:
    """Let Ctrl-C end this process at once and in silence, and let it end with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one, which SIGKILL gives no time to say so."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
