"""Where the runs of a study are computed: in this process, in several, or on Ray."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.simulation.processes import Pool

T = TypeVar("T")
R = TypeVar("R")

#: Where runs are computed: in processes of this machine, or by Ray.
PROCESSES, RAY = "processes", "ray"


class Workers(Protocol):
    """Computes independent items."""

    @property
    def count(self) -> int:
        """How many items are computed at a time."""
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


@contextmanager
def workers(jobs: int | None = None, on: str = PROCESSES, address: str | None = None, most: int | None = None
            ) -> Iterator[Workers]:
    """Workers in *jobs* processes of this machine, by default one per CPU, or *on* Ray; all end with the block.

    There are no more of them than the *most* items that will be in flight.  *address* is that of a Ray cluster; without
    one, Ray is started on this machine.  Raises ConfigError for any other
    place, MissingExtra where Ray is not installed, and KsimError where the cluster cannot be reached.
    """
    check(on, address)
    if on == RAY:
        from ksim.study.on_ray import ray_workers

        with ray_workers(jobs, address) as cluster:
            yield cluster
        return
    count = min(jobs or os.cpu_count() or 1, most or sys.maxsize)
    if count < 2:
        yield InProcess()
        return
    with Pool.of(count) as pool:
        yield pool


def check(on: str, address: str | None = None) -> None:
    """Raise ConfigError and MissingExtra for workers that there cannot be, before anything else is done."""
    if on not in (PROCESSES, RAY):
        raise ConfigError("--on", f"expected {PROCESSES} or {RAY}, not {on!r}")
    if address is not None and on != RAY:
        raise ConfigError("--address", "is that of a Ray cluster; add --on ray")
    if on == RAY and find_spec("ray") is None:
        raise MissingExtra("ray", "--on ray")


def in_order(results: Iterator[tuple[int, R]], count: int) -> list[R]:
    """All *results* of `Workers.run` by their places."""
    found: list[Any] = [None] * count
    for place, result in results:
        found[place] = result
    return found
