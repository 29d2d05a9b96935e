"""A request for several sequences, each of which is a request of its own in an engine.

vLLM's front end fans requests with `n` > 1 out (v1/engine/parallel_sampling.py).

What vLLM's front end refuses of what a request asks of sampling (0.33, sampling_params.py).

What an engine logs of jobs that have ended: their tokens, step by step.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import define, evolve, field

from ksim.flow.events import Decoded, Emitted, Failed, Finished, Prefilled
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job, Run

__all__ = ["ParentRequest", "sampling_refusal", "log_abort", "log_end"]


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


def log_end(log: Log, engine: int, job: Job, told: Callable[[], object], time: float) -> bool:
    """Log that *job* has ended on *engine* at *time*, and its tokens; return whether that ends its request there.

    Its end will be *told* to a parent if it is one of several sequences.
    """
    params, request = job.kv_transfer_params, job.request.id
    if job.failed:
        log.add(Failed(time, request, engine, "the KV that another engine had computed was gone"))
        return True
    if params is not None and params.do_remote_decode:
        log.add(Prefilled(time, request, engine, job.emitted[-1].last))
        return True
    if params is not None and params.handed_over:
        first = job.emitted[0].first
        log.add(Emitted(time, request, engine, first, first))
    if not isinstance(told, ParentRequest):
        _log_end(log, engine, job, request, time)
        return True
    over = told.finish(job)
    if over:
        _log_end(log, engine, told, request, time)
    return over


def log_abort(log: Log, engine: int, jobs: Mapping[Job, Callable[[], object]], decodes: DecodeSet, steps: int,
              time: float) -> None:
    """Log which tokens of the *jobs* of a request users have when it is aborted: those of so many first *steps*.

    The values are who would have been told of their ends.
    """
    ended: ParentRequest | None = None
    for job, told in jobs.items():
        request, params, runs = job.request.id, job.kv_transfer_params, [*_until(decodes.emitted(job), steps)]
        if params is not None and params.do_remote_decode:
            continue
        if params is not None and params.handed_over and runs:
            log.add(Emitted(time, request, engine, runs[0].first, runs[0].first))
        if isinstance(told, ParentRequest):
            told.take(job, runs)
            ended = told
        else:
            _log_tokens(log, engine, runs, request, time)
    if ended is not None and not ended.at_once:
        _log_tokens(log, engine, ended.emitted, request, time, ended)


def _until(runs: Iterable[Run], steps: int) -> Iterator[Run]:
    """What is in *runs* of the engine's first *steps* steps."""
    for run in runs:
        if run.first < steps:
            every = run.every or 1
            yield evolve(run, last=min(run.last, run.first + (steps - 1 - run.first) // every * every))


def _log_end(log: Log, engine: int, ended: Job | ParentRequest, request: int, time: float) -> None:
    """Log the tokens of a sequence, or of all sequences of a *request*, which have *ended*."""
    several = ended if isinstance(ended, ParentRequest) else None
    _log_tokens(log, engine, ended.emitted, request, time, several)
    log.add(Finished(time, request, engine, ended.verified, ended.accepted, several.preemptions if several else 0))


def _log_tokens(log: Log, engine: int, runs: Iterable[Run], request: int, time: float,
                several: ParentRequest | None = None) -> None:
    for run in runs:
        log.add(Emitted(time, request, engine, run.first, run.last, run.every or 1, run.tokens))
    for step, sequences, length in several.decoded() if several else ():
        log.add(Decoded(time, request, engine, step, sequences, length))
