"""The waiting jobs, in the order in which a policy would have them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Protocol

from sortedcontainers import SortedDict

from ksim.scheduling.job import Job

Order = Callable[[Job], Any]


class WaitingQueue(Protocol):
    """Jobs without blocks.  Iterating must be lazy: a step looks at the head of a queue that may be long."""

    def add(self, job: Job) -> None:
        """Let a new job wait."""
        ...

    def put_back(self, job: Job) -> None:
        """Let a preempted job wait."""
        ...

    def remove(self, job: Job) -> None: ...

    def __contains__(self, job: object) -> bool: ...

    def __iter__(self) -> Iterator[Job]: ...

    def __len__(self) -> int: ...


class ArrivalQueue:
    """First come, first served; preempted jobs before all others."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Job, None] = OrderedDict()

    def add(self, job: Job) -> None:
        self._jobs[job] = None

    def put_back(self, job: Job) -> None:
        self._jobs[job] = None
        self._jobs.move_to_end(job, last=False)

    def remove(self, job: Job) -> None:
        del self._jobs[job]

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


class SortedQueue:
    """By a policy's key, smallest first, preempted jobs in their place; equal keys in order of their coming."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._jobs: SortedDict[Any, Job] = SortedDict()
        self._keys: dict[Job, Any] = {}
        self._ticket = count()

    def add(self, job: Job) -> None:
        key = self._keys[job] = (self._order(job), next(self._ticket))
        self._jobs[key] = job

    put_back = add

    def remove(self, job: Job) -> None:
        del self._jobs[self._keys.pop(job)]

    def __contains__(self, job: object) -> bool:
        return job in self._keys

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)


class HoldingQueue:
    """The waiting jobs of an engine with a KV connector: first those that hold blocks, then the others.

    `holding` has vLLM's `kv_holding_waiting`: jobs that load, and jobs whose load has ended.
    """

    def __init__(self, holding: WaitingQueue, waiting: WaitingQueue) -> None:
        self.holding = holding
        self.waiting = waiting
        self.add = waiting.add
        self.put_back = waiting.put_back

    def hold(self, job: Job) -> None:
        """Let *job*, which waits, wait with the blocks that it has now."""
        if job not in self.holding:
            self.waiting.remove(job)
            self.holding.add(job)

    def let_go(self, job: Job) -> None:
        """Let *job* wait before all others that hold no blocks, if it held some."""
        if job in self.holding:
            self.holding.remove(job)
            self.waiting.put_back(job)

    def remove(self, job: Job) -> None:
        (self.holding if job in self.holding else self.waiting).remove(job)

    def __contains__(self, job: object) -> bool:
        return job in self.holding or job in self.waiting

    def __iter__(self) -> Iterator[Job]:
        yield from self.holding
        yield from self.waiting

    def __len__(self) -> int:
        return len(self.holding) + len(self.waiting)


class OpenQueue:
    """The waiting jobs as one step sees them: iterating ends when admission does."""

    __slots__ = ("admitting", "queue")

    def __init__(self, queue: WaitingQueue) -> None:
        self.queue = queue
        self.admitting = True

    def __contains__(self, job: object) -> bool:
        return job in self.queue

    def __iter__(self) -> Iterator[Job]:
        for job in self.queue:
            if not self.admitting:
                return
            yield job

    def __len__(self) -> int:
        return len(self.queue)
