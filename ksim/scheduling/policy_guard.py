"""Holds policies and admissions, which may be plug-ins, to their contracts."""

import reprlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from ksim.foundation.errors import ConfigError, KsimError
from ksim.kv.cache import Cache
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.job import Job, State
from ksim.scheduling.policies import Wish
from ksim.scheduling.queue import ArrivalQueue, OpenQueue, SortedQueue, WaitingQueue


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
