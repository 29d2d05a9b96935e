"""Workers that compute the runs of a study: this process, several processes, or Ray on this machine or a cluster."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import frozen

from ksim.foundation.catalog import TRUST
from ksim.foundation.errors import ConfigError, KsimError, MissingExtra, WorkerLost
from ksim.simulation.processes import ProcessPool

T = TypeVar("T")
R = TypeVar("R")

#: Items in flight for each CPU: one that is computed, and one that waits for it.
_AHEAD = 2
#: A worker keeps no large objects; Ray's own choice is 30 % of the memory.
_STORE = 100_000_000
#: Seconds for the head of a cluster to answer.
_PATIENCE = 10.0
#: What Ray reads from the environment: it reports nothing, and counts no accelerators.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


@frozen
class RayWorkers:
    """Computes `count` items at a time, each as a task of Ray."""

    count: int
    _ray: Any

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Do as `RunWorkers.run`; no more items are in flight than keep the workers busy."""
        task = self._ray.remote(max_retries=1)(_computed)
        shared, paths = self._ray.put(work), [str(Path.cwd())]
        waiting, flying = iter(enumerate(items)), dict[Any, int]()
        try:
            while True:
                for place, item in islice(waiting, _AHEAD * self.count - len(flying)):
                    flying[task.remote(paths, shared, item)] = place
                if not flying:
                    return
                ended, _ = self._wait(list(flying))
                for reference in ended:
                    yield flying.pop(reference), self._result(reference)
        finally:
            with suppress(self._ray.exceptions.RayError):  # it is gone, which has been told
                for reference in flying:
                    self._ray.cancel(reference)

    def _wait(self, flying: list[Any]) -> Any:
        """Those of the tasks *flying* that have ended first; raises WorkerLost where Ray itself has ended."""
        try:
            return self._ray.wait(flying)
        except self._ray.exceptions.RayError as lost:
            raise WorkerLost(f"Ray's own processes have ended, as happens when they are killed or memory is gone:"
                             f" {str(lost).strip().splitlines()[0]}") from lost

    def _result(self, reference: Any) -> Any:
        """The result of a task; raises its error, and WorkerLost if its process was killed."""
        try:
            error, result = self._ray.get(reference)
        except self._ray.exceptions.RayError as lost:
            raise WorkerLost(f"Ray lost a run, as happens when a node or its memory is gone:"
                             f" {str(lost).strip().splitlines()[0]}") from lost
        if error is not None:
            raise error
        return result


@contextmanager
def ray_workers(jobs: int | None = None, address: str | None = None) -> Iterator[RayWorkers]:
    """Workers on the cluster at *address*, or on a local Ray with *jobs* CPUs, which ends with the block.

    A cluster computes as many items at a time as it has CPUs, or *jobs*.  A Ray that this process has started already
    is used as it is.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
    ray: Any = import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        with _own_signals():
            _start(ray, jobs, address)
    try:
        there = int(ray.cluster_resources().get("CPU", 1))
        yield RayWorkers(min(jobs or there, there), ray)
    finally:
        if ours:
            ray.shutdown()


def _start(ray: Any, jobs: int | None, address: str | None) -> None:
    """Connect to the cluster at *address*, or start a local Ray; raises KsimError."""
    common = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        _reach(address)
        if address is None:
            ray.init("local", num_cpus=jobs or os.cpu_count(), num_gpus=0, include_dashboard=False,
                     object_store_memory=_STORE, **common)
        else:
            trusted = {name: os.environ[name] for name in (TRUST,) if name in os.environ}
            ray.init(address, runtime_env={"py_modules": own_modules(Path.cwd()), "env_vars": trusted}, **common)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = f"of the cluster at {address} " if address else ""
        raise KsimError(f"Ray {where}cannot be used: {str(error).strip().splitlines()[0]}") from error


def _reach(address: str | None) -> None:
    """Raise OSError where nobody listens at *address*; Ray would try for ten minutes, and say so all the time."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def own_modules(folder: Path) -> list[str]:
    """The modules and packages in *folder*, where a user's plug-ins may be: nodes of a cluster get a copy of them."""
    return sorted(str(path) for path in folder.iterdir() if not path.name.startswith(".")
                  and (path.suffix == ".py" or (path / "__init__.py").is_file()))


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what this process does on SIGTERM; Ray would end it without cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _computed(paths: list[str], work: Callable[[T], R], item: T) -> tuple[Exception | None, R | None]:
    """The error or the result of ``work(item)``, in a worker that finds plug-ins in *paths*."""
    sys.path[:0] = [path for path in paths if path not in sys.path]
    try:
        return None, work(item)
    except Exception as error:
        return error, None


#: Where runs are computed: in processes of this machine, or by Ray.
PROCESSES, RAY = "processes", "ray"


class RunWorkers(Protocol):
    """Computes independent items."""

    @property
    def count(self) -> int:
        """The number of items that are computed at a time."""
        ...

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Yield the place and the result of ``work(item)`` for each of *items*, as they end, in any order.

        *work* is a function of a module, or a `functools.partial` of one; items and results can be pickled.  Raises
        what *work* raises, and WorkerLost where a worker is killed.
        """
        ...


class InProcess:
    """Computes one item after the other in this process."""

    count = 1

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        return ((place, work(item)) for place, item in enumerate(items))


@frozen
class Where:
    """The place where runs are computed: in `jobs` processes of this machine, by default one per CPU, or `on` Ray.

    `address` is that of a Ray cluster; without one, Ray is started on this machine.  Raises ConfigError for any other
    place, and MissingExtra where Ray is not installed.
    """

    jobs: int | None = None
    on: str = PROCESSES
    address: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.on not in (PROCESSES, RAY):
            raise ConfigError("--on", f"expected {PROCESSES} or {RAY}, not {self.on!r}")
        if self.address is not None and self.on != RAY:
            raise ConfigError("--address", "is that of a Ray cluster; add --on ray")
        if self.on == RAY and find_spec("ray") is None:
            raise MissingExtra("ray", "--on ray")

    @contextmanager
    def workers(self, most: int | None = None) -> Iterator[RunWorkers]:
        """Workers that end with the block, no more of them than the *most* items that will be in flight.

        Raises KsimError where a cluster cannot be reached.
        """
        if self.on == RAY:
            with ray_workers(self.jobs, self.address) as cluster:
                yield cluster
            return
        count = min(self.jobs or os.cpu_count() or 1, most or sys.maxsize)
        if count < 2:
            yield InProcess()
            return
        with ProcessPool.of(count) as pool:
            yield pool


#: In processes of this machine, one per CPU.
HERE = Where()


def in_order(results: Iterator[tuple[int, R]], count: int) -> list[R]:
    """All *results* of `RunWorkers.run` in the order of their items."""
    ordered: list[Any] = [None] * count
    for number, result in results:
        ordered[number] = result
    return ordered
