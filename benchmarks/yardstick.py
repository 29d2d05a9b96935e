"""The yardstick: what an event of SimPy costs on this machine, one process that waits for one timeout after another.

A loop over a heap in C says less of how fast Python is: where one made 15 % more events, ksim took three times as long.
SimPy's events are what ksim is made of, interpreter, allocator and caches included.
"""

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import simpy

#: Microseconds of CPU for an event on the machine that goals and peers' figures are of (SimPy 4.1, Python 3.11).
STANDARD = 0.42

_T = TypeVar("_T")


def microseconds(events: int = 500_000) -> float:
    """CPU time of one event."""
    env = simpy.Environment()
    env.process(_waits(env, events))
    begin = time.process_time()
    env.run()
    return 1e6 * (time.process_time() - begin) / events


def _waits(env: simpy.Environment, events: int) -> Generator[Any, Any, None]:
    for _ in range(events):
        yield env.timeout(1.0)


def scaled(value: float, yardstick: float) -> float:
    """What takes *value* here, where an event takes *yardstick* microseconds, on the standard machine."""
    return value * STANDARD / yardstick


def beside(block: Callable[[], _T]) -> tuple[_T, float]:
    """What *block* returns, and microseconds for an event: the better of before and after, as its figures are the
    best."""
    before = microseconds(200_000)
    found = block()
    return found, min(before, microseconds(200_000))
