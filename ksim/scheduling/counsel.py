"""What a policy advises, held to its contract."""

import reprlib
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.scheduling.job import Job, State
from ksim.scheduling.policies import ALL, Wish
from ksim.scheduling.queue import ArrivalQueue, OpenQueue, SortedQueue, WaitingQueue


@define(eq=False)
class Counsel:
    """Asks a policy, and does as vLLM's first come, first served where it has nothing to say.

    Advice that breaks the contract raises ConfigError; an own `propose` is
    looked at wish by wish, and no other policy pays for that.
    """

    policy: Any
    step: int = field(default=0, init=False)
    proposes: bool = field(init=False)
    chooses: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.proposes = hasattr(self.policy, "propose")
        self.chooses = hasattr(self.policy, "victim")

    def queue(self) -> WaitingQueue:
        """An empty queue in the policy's order."""
        order = getattr(self.policy, "order", None)
        return SortedQueue(order) if order else ArrivalQueue()

    def wishes(self, waiting: OpenQueue, running: Sequence[Job], now: float) -> Iterable[Wish]:
        """Who should compute how many tokens at most, in order of preference."""
        if not self.proposes:
            return zip(chain(running, waiting), repeat(ALL), strict=False)
        wishes = self.policy.propose(waiting, running, now)
        if not isinstance(wishes, Iterable):
            raise self._mistake(_flaw(wishes, ()))
        return self._sound(wishes, waiting, running)

    def victim(self, running: Sequence[Job]) -> Job:
        """Which running job should give way."""
        if not self.chooses:
            return running[-1]
        victim: Job = self.policy.victim(tuple(running))
        if victim not in running:
            raise self._mistake(f"chooses {_called(victim)} to give way, which is not running")
        return victim

    def _sound(self, wishes: Iterable[Wish], waiting: OpenQueue, running: Sequence[Job]) -> Iterator[Wish]:
        """*wishes*, each for a job of this engine that no earlier one was for."""
        heard, known = set[Job](), set(running)
        for wish in wishes:
            try:
                job, tokens = wish
                sound = isinstance(tokens, int) and tokens > 0 and job not in heard and (job in known or job in waiting)
            except (TypeError, ValueError):  # it is no pair, or not of a job
                raise self._mistake(_flaw(wish, heard)) from None
            if sound:
                heard.add(job)
                yield job, tokens
            elif not self._gave_way(job):
                raise self._mistake(_flaw(wish, heard))

    def _gave_way(self, job: Any) -> bool:
        """Whether *job* was preempted in this step: who proposes lazily, sees it change and may name it again."""
        return isinstance(job, Job) and job.state is State.WAITING and job.step == self.step

    def _mistake(self, what: str) -> ConfigError:
        return ConfigError(f"policy {type(self.policy).__name__}", f"{what}, in step {self.step}")


def _flaw(wish: Any, heard: Container[Job]) -> str:
    match wish:
        case (Job() as job, int(tokens)) if tokens > 0:
            if job in heard:
                return f"proposes {_called(job)} twice"
            return f"proposes {_called(job)}, which {'is finished' if job.state is State.DONE else 'runs elsewhere'}"
        case (Job() as job, tokens):
            return f"wishes {tokens!r} tokens for {_called(job)}, not a whole number from 1 on"
        case _:
            return f"proposes {_called(wish)}, not pairs of a job and the most tokens it should compute"


def _called(job: object) -> str:
    return f"request {job.request.id}" if isinstance(job, Job) else reprlib.repr(job)
