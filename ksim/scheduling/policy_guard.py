"""Holds policies and admissions, which may be plug-ins, to their contracts.

The waiting jobs, in the order in which a policy would have them.
"""

import reprlib
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.foundation.errors import ConfigError, KsimError
from ksim.kv.cache import Cache
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.job import Job, State
from ksim.scheduling.policies import Wish

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


@define(eq=False)
class PolicyGuard:
    """Asks a policy and an admission; what a policy lacks is as in vLLM's first come, first served.

    An answer that breaks the contract raises ConfigError.  The wishes of a policy
    with `propose` are checked one by one; other policies do not pay for that.
    """

    policy: Any
    admission: Any = field(factory=Always)
    step: int = field(default=0, init=False)
    proposes: bool = field(init=False)
    chooses: bool = field(init=False)
    reorders: bool = field(init=False)
    demands: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.proposes = hasattr(self.policy, "propose")
        self.chooses = hasattr(self.policy, "victim")
        self.reorders = hasattr(self.policy, "queue")
        self.demands = not isinstance(self.admission, Always)

    def queue(self) -> WaitingQueue:
        """An empty queue in the policy's order."""
        if hasattr(self.policy, "queue"):
            queue: WaitingQueue = self.policy.queue()
            return queue
        return self.holding_queue()

    def holding_queue(self) -> WaitingQueue:
        """An empty queue for jobs that hold blocks while they wait, which a policy's own kind of queue never sees."""
        return SortedQueue(self._order) if hasattr(self.policy, "order") else ArrivalQueue()

    def wishes(self, waiting: OpenQueue, running: Sequence[Job], now: float) -> Iterable[Wish]:
        """The wishes of a policy that `proposes`: jobs, and how many tokens each should compute at most, in order."""
        with self._naming(self._policy):
            wishes = self.policy.propose(waiting, running, now)
        if not isinstance(wishes, Iterable):
            raise self._mistake(_flaw(wishes, ()), self._policy)
        return self._sound(wishes, waiting, running)

    def victim(self, running: Sequence[Job]) -> Job:
        """Which running job should be preempted."""
        if not self.chooses:
            return running[-1]
        with self._naming(self._policy):
            victim: Job = self.policy.victim(tuple(running))
        if victim not in running:
            raise self._mistake(f"chooses {_called(victim)} as its victim, which is not running", self._policy)
        return victim

    def admits(self, job: Job, running: Sequence[Job], cache: Cache) -> bool:
        """Whether *job* may start beside *running*; asked only of an admission that `demands` something."""
        name = f"admission {getattr(self.admission, '__name__', type(self.admission).__name__)}"
        with self._naming(name):
            answer = getattr(self.admission, "admits", self.admission)(job, tuple(running), cache)
            if answer not in (True, False):
                raise self._mistake(f"answers {answer!r} for {_called(job)}, not whether it may start", name)
        return bool(answer)

    def _order(self, job: Job) -> Any:
        with self._naming(self._policy):
            return self.policy.order(job)

    def _sound(self, wishes: Iterable[Wish], waiting: OpenQueue, running: Sequence[Job]) -> Iterator[Wish]:
        """*wishes*, each of which must be for a job of this engine that no earlier one was for."""
        named, known = set[Job](), set(running)
        for wish in self._guarded(wishes):
            try:
                job, tokens = wish
                sound = isinstance(tokens, int) and tokens > 0 and job not in named and (job in known or job in waiting)
            except (TypeError, ValueError):  # it is no pair, or not of a job
                raise self._mistake(_flaw(wish, named), self._policy) from None
            if sound:
                named.add(job)
                yield job, tokens
            elif not self._was_preempted(job):
                raise self._mistake(_flaw(wish, named), self._policy)

    def _guarded(self, wishes: Iterable[Wish]) -> Iterator[Wish]:
        with self._naming(self._policy):
            yield from wishes

    def _was_preempted(self, job: Any) -> bool:
        """Whether *job* was preempted in this step: a policy that proposes lazily sees that, and may name it again."""
        return isinstance(job, Job) and job.state is State.WAITING and job.step == self.step

    @property
    def _policy(self) -> str:
        return f"policy {type(self.policy).__name__}"

    @contextmanager
    def _naming(self, adviser: str) -> Iterator[None]:
        """Raise what a plug-in raises as ConfigError, with the plug-in's name."""
        try:
            yield
        except KsimError:
            raise
        except Exception as error:
            raise self._mistake(f"raises {type(error).__name__}: {error}", adviser) from error

    def _mistake(self, what: str, adviser: str) -> ConfigError:
        return ConfigError(adviser, f"{what}, in step {self.step}")


def _flaw(wish: Any, named: Container[Job]) -> str:
    match wish:
        case (Job() as job, int(tokens)) if tokens > 0:
            if job in named:
                return f"proposes {_called(job)} twice"
            return f"proposes {_called(job)}, which {'is finished' if job.state is State.DONE else 'runs elsewhere'}"
        case (Job() as job, tokens):
            return f"wishes {tokens!r} tokens for {_called(job)}, not a whole number from 1 on"
        case _:
            return f"proposes {_called(wish)}, not pairs of a job and the most tokens it should compute"


def _called(job: object) -> str:
    return f"request {job.request.id}" if isinstance(job, Job) else reprlib.repr(job)
