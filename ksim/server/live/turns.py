"""The turns of requests that have come: they are read in that order, a few in each turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from attrs import define, field

__all__ = ["SLICE", "Turns"]

#: Seconds of the wall clock after which the event loop gets its turn, if much has to be done.
SLICE = 2e-3

T = TypeVar("T")


@define(eq=False)
class Turns:
    """Does jobs one after the other, so that hundreds of requests that come at once do not stop all streams."""

    _jobs: deque[tuple[float, Callable[[], Any], "asyncio.Future[Any]"]] = field(factory=deque, init=False)

    @property
    def oldest(self) -> float | None:
        """When the first of those that wait came, by the wall clock."""
        return self._jobs[0][0] if self._jobs else None

    async def take(self, job: Callable[[], T], came: float) -> T:
        """What *job* returns or raises, when its turn has come; its request *came* at this time of the wall clock."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._jobs.append((came, job, answer))
        if len(self._jobs) == 1:
            loop.call_soon(self._go_on)
        return await answer

    def _go_on(self) -> None:
        """Do jobs for a while: at least one, and the last one to its end."""
        until = perf_counter() + SLICE
        while self._jobs:
            _, job, answer = self._jobs[0]
            if not answer.done():
                try:
                    answer.set_result(job())
                except StopIteration as error:  # which a future cannot hold
                    answer.set_exception(RuntimeError(repr(error)))
                except Exception as error:
                    answer.set_exception(error)
            self._jobs.popleft()
            if self._jobs and perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
