"""A request for several sequences, each of which is a request of its own in an engine.

vLLM's front end fans requests with `n` > 1 out (v1/engine/parallel_sampling.py).

What vLLM's front end refuses of what a request asks of sampling (0.33, sampling_params.py).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.scheduling.job import Job, Run

__all__ = ["ParentRequest", "sampling_refusal"]


@define(eq=False)
class ParentRequest:
    """Hears of the end of each of `left` child requests, and calls `done` when the last has ended.

    The user sees one request: `emitted` has the tokens of all its sequences by the steps that sampled them.  Results
    follow the child that is admitted first; `preemptions` are those of the others.
    """

    #: Whether the user gets all tokens with the last one.
    at_once: ClassVar[bool] = False

    left: int
    done: Callable[[], object]
    verified: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    preemptions: int = field(default=0, init=False)
    _unfinished: int = field(init=False)
    _leader: Job | None = field(default=None, init=False)
    _tokens: Counter[int] = field(factory=Counter, init=False)
    #: By step: how many of its tokens are of sequences that decode, and how long these sequences are.
    _decoded: dict[int, tuple[int, int]] = field(factory=dict, init=False)
    #: The tokens that children had when they were admitted: they catch up with the next one.
    _caught_up: defaultdict[Job, set[int]] = field(factory=lambda: defaultdict(set), init=False)

    def __attrs_post_init__(self) -> None:
        self._unfinished = self.left

    def admit(self, job: Job) -> bool:
        """Take note that *job*, a child, is admitted; return whether it is the one that was admitted first."""
        self._leader = self._leader or job
        self._caught_up[job].add(job.sampled)
        return self._leader is job

    def leads(self, job: Job) -> bool:
        """Whether *job*, a child, is the one that was admitted first."""
        return self._leader is job

    def finish(self, job: Job) -> bool:
        """Take in the tokens of a child; return whether it was the last one."""
        self._count(job)
        self.take(job, job.emitted)
        return not self._unfinished

    def take(self, job: Job, runs: Sequence[Run]) -> None:
        """Take in *runs*, the tokens of a child."""
        caught_up, place = self._caught_up.pop(job, set()), 0
        for run in runs:
            for step in range(run.first, run.last + 1, run.every or 1):
                self._tokens[step] += run.tokens
                if place not in caught_up:
                    count, length = self._decoded.get(step, (0, 0))
                    self._decoded[step] = count + 1, length + job.request.prompt + place
                place += run.tokens

    def _count(self, job: Job) -> None:
        """Count *job*, which has ended."""
        self.verified += job.verified
        self.accepted += job.accepted
        if job is not self._leader:
            self.preemptions += job.preemptions
        self._unfinished -= 1

    def decoded(self) -> Iterator[tuple[int, int, int]]:
        """Steps, how many sequences of the request decode in each, and how long these are together."""
        return ((step, *counts) for step, counts in sorted(self._decoded.items()))

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


def sampling_refusal(request: Request, most: int) -> str:
    """Why an engine with *most* for `max_logprobs` does not take *request*; "" if it does."""
    if request.beam_width:
        return _beam_refusal(request, most)
    asked = request.prompt_logprobs or 0
    if most >= 0 and not 0 <= asked <= most:
        shown = "all of the vocabulary" if asked < 0 else asked
        return f"its prompt_logprobs are {shown}, more than max_logprobs = {most}; set that to {asked}, or ask for less"
    return ""


def _beam_refusal(request: Request, most: int) -> str:
    if request.n > 1:
        return f"its n is {request.n}, and a beam search returns beam_width = {request.beam_width} sequences"
    if request.prompt_logprobs is not None:
        return "its prompt_logprobs are not computed by a beam search"
    if 0 <= most < 2 * request.beam_width:
        return (f"its beam_width is {request.beam_width}, which needs {2 * request.beam_width} log-probabilities at"
                f" each place, more than max_logprobs = {most}; raise that, or search less")
    return ""
