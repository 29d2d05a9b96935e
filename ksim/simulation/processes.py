"""Independent work in several processes, which end when it is interrupted or when the process that waits is killed."""

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from attrs import frozen

from ksim.foundation.errors import KsimError, WorkerLost

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
    with ProcessPool.of(jobs) as pool:
        ready, due = dict[int, R](), 0
        for place, result in pool.run(work, items):
            ready[place] = result
            while due in ready:
                yield ready.pop(due)
                due += 1


@frozen
class ProcessPool:
    """`count` processes that stay for several calls of `run`."""

    count: int
    _executor: Any

    @classmethod
    @contextmanager
    def of(cls, count: int) -> Iterator["ProcessPool"]:
        """*count* processes, which end with the block; at once where it ends with an error.

        Raises KsimError in a process of such a pool that has to run the program for a plug-in which stands in it.
        """
        if isinstance(sys.modules["__main__"], _Program):
            raise KsimError(_UNGUARDED)
        # Most runs have one process; importing these would cost them more than they gain.
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        before = set(multiprocessing.active_children())
        executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin,
                                       _program_of(sys.modules["__main__"]))
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
            with _interrupts_held(), _without_program():
                places = {self._executor.submit(work, item): place for place, item in enumerate(items)}
            for future in as_completed(places):
                yield places[future], future.result()
        except BrokenProcessPool as error:
            raise WorkerLost("a process was killed before it was done, as happens when a system runs out of memory;"
                             " try fewer --jobs") from error


#: Why a program that defines a plug-in cannot start processes wherever it likes.
_UNGUARDED = ("the program defines a plug-in, so each process runs it again, up to here: put what starts processes"
              " under `if __name__ == \"__main__\":`")


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


class _Program(ModuleType):
    """The module `__main__` of a process, which runs the program only if something in it is asked for: a plug-in.

    Python's own processes always do, so that in a script without `if __name__ == "__main__":` they would start
    processes themselves.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__("__main__")
        self._name, self._path = name, path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_ran"):
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        if "_ran" in self.__dict__:  # the program itself asks, while it runs again
            raise KsimError(_UNGUARDED)
        self._ran = False
        run = runpy.run_module(self._name, run_name="__mp_main__", alter_sys=True) if self._name else runpy.run_path(
            self._path, run_name="__mp_main__")
        self.__dict__.update(run)
        self._ran = True
        return getattr(self, name)


def _program_of(main: ModuleType) -> tuple[str, str]:
    """The name of the module that was started as the program, and the path of its file, each "" where there is none."""
    return getattr(main.__spec__, "name", ""), getattr(main, "__file__", "")


@contextmanager
def _without_program() -> Iterator[None]:
    """Start processes that do not run the program."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin(name: str, path: str) -> None:
    """Let Ctrl-C end this process at once, without a message, and let it end with its parent."""
    if name or path:
        sys.modules["__main__"] = sys.modules["__mp_main__"] = _Program(name, path)
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
