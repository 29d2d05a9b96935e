"""Independent work in several processes, which end when it is interrupted or when the process that waits is killed."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import frozen

from ksim.foundation.errors import WorkerLost

T = TypeVar("T")
R = TypeVar("R")


def run_in_processes(work: Callable[[T], R], items: Sequence[T], jobs: int) -> Generator[R, None, None]:
    """Yield ``work(item)`` for each of *items*, in their order, from *jobs* processes, or from this one if that is 1.

    *work* has to be a function of a module; items and results have to be picklable.  Raises what *work* raises, and
    WorkerLost where a process is killed.
    """
    if (jobs := min(jobs, len(items))) < 2:
        yield from map(work, items)
        return
    with Pool.of(jobs) as pool:
        ready, due = dict[int, R](), 0
        for place, result in pool.run(work, items):
            ready[place] = result
            while due in ready:
                yield ready.pop(due)
                due += 1


@frozen
class Pool:
    """`count` processes that stay for several calls of `run`."""

    count: int
    _executor: Any

    @classmethod
    @contextmanager
    def of(cls, count: int) -> Iterator["Pool"]:
        """*count* processes, which end with the block; at once where it ends with an error."""
        # Most runs have one process; importing these would cost them more than they gain.
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        before = set(multiprocessing.active_children())
        executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)
        try:
            yield cls(count, executor)
        except BaseException:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise
        finally:
            executor.shutdown(cancel_futures=True)

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Generator[tuple[int, R], None, None]:
        """Yield the place and the result of ``work(item)`` for each of *items*, as they end.

        Raises what *work* raises, and WorkerLost where a process is killed.
        """
        from concurrent.futures import as_completed
        from concurrent.futures.process import BrokenProcessPool

        try:
            with _interrupts_held():
                places = {self._executor.submit(work, item): place for place, item in enumerate(items)}
            for future in as_completed(places):
                yield places[future], future.result()
        except BrokenProcessPool as error:
            raise WorkerLost("a process was killed before it was done, as happens when a system runs out of memory;"
                             " try fewer --jobs") from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back, also in processes that start meanwhile, which would print a traceback from their imports."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _begin() -> None:
    """Let Ctrl-C end this process at once, without a message, and let it end with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """End this process when its parent ends; a parent that is killed cannot tell its children."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
