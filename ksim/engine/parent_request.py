"""A request for several sequences (`n` > 1), as vLLM's front end fans it out (v1/engine/parallel_sampling.py)."""

from collections import Counter
from collections.abc import Callable, Iterator

from attrs import define, field

from ksim.scheduling.job import Job, Run

__all__ = ["ParentRequest"]


@define(eq=False)
class ParentRequest:
    """Hears of the end of each of `left` child requests, and calls `done` when the last has ended.

    The user sees one request: `emitted` has the tokens of all its sequences by the steps that sampled them.
    """

    left: int
    done: Callable[[], object]
    verified: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    _unfinished: int = field(init=False)
    _leader: Job | None = field(default=None, init=False)
    _tokens: Counter[int] = field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self._unfinished = self.left

    def leads(self, job: Job) -> bool:
        """Whether *job*, a child that is admitted or preempted now, is the one that was admitted first."""
        self._leader = self._leader or job
        return self._leader is job

    def finish(self, job: Job) -> bool:
        """Take in the tokens of a child; return whether it was the last one."""
        for run in job.emitted:
            for step in range(run.first, run.last + 1, run.every or 1):
                self._tokens[step] += run.tokens
        self.verified += job.verified
        self.accepted += job.accepted
        self._unfinished -= 1
        return not self._unfinished

    @property
    def emitted(self) -> Iterator[Run]:
        """The tokens of all children that have ended, in order of time."""
        run: Run | None = None
        for step, tokens in sorted(self._tokens.items()):
            if run is not None and step == run.last + 1 and tokens == run.tokens:
                run.last = step
                continue
            if run is not None:
                yield run
            run = Run(step, step, 1, tokens)
        if run is not None:
            yield run

    def __call__(self) -> None:
        """Another child's last token is with the user."""
        self.left -= 1
        if not self.left:
            self.done()
