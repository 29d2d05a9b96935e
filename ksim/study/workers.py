"""Where the runs of a study are computed: in this process or in several."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from ksim.simulation.processes import Pool

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Computes independent items."""

    @property
    def count(self) -> int:
        """How many items are computed at a time."""
        ...

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Yield the place and the result of ``work(item)`` for each of *items*, as they end, in any order.

        *work* is a function of a module, or a `functools.partial` of one; items and results can be pickled.  Raises
        what *work* raises, and KsimError where a worker is killed.
        """
        ...


class InProcess:
    """Computes one item after the other in this process."""

    count = 1

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        return ((place, work(item)) for place, item in enumerate(items))


@contextmanager
def workers(jobs: int | None = None) -> Iterator[Workers]:
    """Workers in *jobs* processes, by default one per CPU; all of them end with the block."""
    count = jobs or os.cpu_count() or 1
    if count < 2:
        yield InProcess()
        return
    with Pool.of(count) as pool:
        yield pool


def in_order(results: Iterator[tuple[int, R]], count: int) -> list[R]:
    """All *results* of `Workers.run` by their places."""
    found: list[Any] = [None] * count
    for place, result in results:
        found[place] = result
    return found
