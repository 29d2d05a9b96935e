"""An engine: one model replica that makes batches, computes them and emits tokens; what both kinds have in common.

A `PendingStep` is a batch on its way through the engine.  A `ParentRequest` has several sequences, each of which is a
request of its own in the engine, as vLLM's front end fans out those with `n` > 1 (v1/engine/parallel_sampling.py).
What that front end refuses of a request's sampling is here, too (0.33, sampling_params.py).
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, ClassVar

import simpy
from attrs import define, evolve, field

from ksim.cost.step import Timer
from ksim.engine.governors import Supervised
from ksim.engine.loop_times import Frontend, Horizon
from ksim.engine.observer import ObservedLoop, Observer
from ksim.engine.ranks import InFlightBatch
from ksim.flow.batch import Batch
from ksim.flow.events import (
    Admitted,
    Decoded,
    Emitted,
    Failed,
    Finished,
    KvTransferParams,
    Preempted,
    Prefilled,
    Received,
    Released,
)
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.engine_loop import EngineLoop, Turn
from ksim.scheduling.job import Job, Run, Schedule, State
from ksim.scheduling.scheduler import Scheduler
from ksim.specs.host import Host

if TYPE_CHECKING:
    from ksim.kv.transfer.endpoint import ConnectorWorker, Endpoint


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
        caught_up, index = self._caught_up.pop(job, set()), 0
        for run in runs:
            for step in range(run.first, run.last + 1, run.every or 1):
                self._tokens[step] += run.tokens
                if index not in caught_up:
                    count, length = self._decoded.get(step, (0, 0))
                    self._decoded[step] = count + 1, length + job.request.prompt + index
                index += run.tokens

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
        log.add(Failed(time, request, engine, job.why or "the KV that another engine had computed was gone"))
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


def tokens_until(decodes: DecodeSet, job: Job, steps: int) -> int:
    """How many tokens of *job* users have from the engine's first *steps* steps."""
    runs = [*_until(decodes.emitted(job), steps)]
    handed_over = job.kv_transfer_params is not None and job.kv_transfer_params.handed_over and bool(runs)
    return handed_over + sum(((run.last - run.first) // (run.every or 1) + 1) * run.tokens for run in runs)


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


Process = Generator[simpy.Event, Any, None]
#: How long vLLM's engine core sleeps after a turn without a batch while requests wait (v1/engine/core.py).
POLL = 1e-3
#: An event's class, and its arguments besides the time.
Change = tuple[Callable[..., Admitted | Preempted], tuple[Any, ...]]


@define(eq=False, kw_only=True)
class Engine(ABC):
    """Runs the loop of vLLM's engine core, and is the port that makes it wait.

    Requests that arrive are seen when a turn begins.  The host works beside the GPUs, so with two batches in flight its
    time hides behind theirs.  `timers` has one entry per pipeline stage.  With one GPU, the worker runs on the loop's
    thread, which goes on once all kernels are launched; with more, `workers` are processes of their own.  A `governor`
    says which power cap and clock GPUs keep to.  Its `role` in a fleet is prefill, decode or both; its `gpus` are
    numbers of the fleet's GPUs, stage by stage.  Through its `connector`, KV comes from elsewhere and goes there; its
    `endpoint` is what other engines see of that.  `logprobs` makes a timer price those of prompts, too.
    """

    number: int
    env: Horizon
    scheduler: Scheduler
    timers: Sequence[Timer]
    host: Host
    log: Log
    workers: int = 1
    governor: Supervised | None = None
    role: str = "both"
    gpus: Sequence[int] = ()
    connector: "ConnectorWorker | None" = None
    endpoint: "Endpoint | None" = None
    logprobs: Callable[[Timer], Timer] | None = None
    seed: int = 0
    outstanding: int = field(default=0, init=False)
    observer: Observer | None = field(default=None, init=False)
    _loop: EngineLoop = field(init=False)
    _frontend: Frontend = field(init=False)
    _accepted: int = field(default=0, init=False)
    _latest: float = field(default=-1.0, init=False)  # arrival
    _done: dict[Job, Callable[[], object]] = field(factory=dict, init=False)
    _news: simpy.Event = field(init=False)
    _turns: Process = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._loop = EngineLoop(self.scheduler)
        self._news = self.env.event()
        self._frontend = Frontend(self.env, self.host.client)
        if self.connector is not None:
            self.connector.wake = self._wake
        self._turns = self._run()
        self.env.process(self._turns)

    def refusal(self, request: Request) -> str:
        """Why this engine can never serve *request*; "" if it can."""
        if request.adapter and not self.adapter_place(request.adapter):
            why = "it is none of lora_modules" if self.scheduler.adapters else "enable_lora is off"
            return f"the model {request.adapter!r} does not exist: {why}"
        return (self.scheduler.length_refusal(request)
                or (self.scheduler.images_refusal(request) if request.images else "")
                or sampling_refusal(request, self.scheduler.limits.max_logprobs))

    @abstractmethod
    def submit(self, request: Request, done: Callable[[], object], timely: bool = True,
               params: KvTransferParams | None = None) -> None:
        """Send *request* to the queue; *done* is called once the user has its last token.

        If it is *timely*, *done* is called at that very moment of SimPy's clock, as it may cause other events.
        *params* say that its KV comes from another engine, or goes to one.
        """

    def show(self, observer: Observer) -> None:
        """Tell *observer* what others may know of this engine, from its first turn on, which is yet to come."""
        self.observer = observer
        self._loop = ObservedLoop(self.scheduler, observer=observer, port=self, delivered=self._delivery)
        observer.measure(self.scheduler, 0.0)

    def _submitted(self, request: Request) -> None:
        """Count *request*, which is sent now."""
        self.outstanding += 1
        if self.observer is not None:
            self.observer.sent(self.env.now, request)

    def _delivery(self, turn: Turn) -> float:
        """When users will have the tokens of *turn*, which is taken in now."""
        return self._frontend.delivery(turn.work.batch.samples if turn.work else 0)

    @property
    def settling(self) -> Turn | None:
        """The turn that is taken in before the next one begins; its batch may still wait to be sent."""
        return self._loop.in_flight[0] if self._loop.full and not self._loop.in_flight[0].empty else None

    @property
    def waiting(self) -> int:
        """How many requests are in the queue."""
        return len(self.scheduler.waiting)

    def prefix_hit(self, request: Request) -> int:
        """How many tokens of *request*'s prompt are in the prefix cache now."""
        return self.scheduler.cache.find_prefix(self.scheduler.block_table(request.keyed), request.prompt).tokens

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        """How many further tokens of its prompt are in each tier below the GPU now, each continuing the one above."""
        connector = self.scheduler.connector
        return connector.tier_hits(request, self.prefix_hit(request)) if connector is not None else {}

    def adapter_place(self, name: str) -> str:
        """Where the LoRA adapter *name* is now: "gpu", "memory", "disk", or "" if there is none."""
        store = self.scheduler.adapters
        return store.place(name) if store else ""

    def abort(self, request: int) -> bool:
        """Drop *request*, as its client has gone; return whether this engine had it: one ahead of the clock has not."""
        return False

    def tokens_had(self, request: int) -> int:
        """How many tokens of *request* its user has from here; 0 of an engine ahead of the clock."""
        return 0

    @abstractmethod
    def last_pass(self, now: float) -> tuple[Batch, float] | None:
        """The batch and the seconds of the last forward pass whose tokens were taken in by *now*; None where there was
        none, or it is not known."""

    def catch_up(self, now: float) -> None:  # noqa: B027
        """Take all turns that begin by *now*, for somebody who looks then: an engine may put them off until it must."""

    @abstractmethod
    def close(self) -> None:
        """Log what is not logged yet: the run is over, or somebody looks at it."""

    def stop(self) -> None:
        """Take no further turn: an engine that waits for one refers to itself, and would be kept until garbage is
        collected, with all that its run has made."""
        self._turns.close()

    @abstractmethod
    def _run(self) -> Process:
        """Take turns for ever."""

    def _accept(self, request: Request, now: float, done: Callable[[], object],
                params: KvTransferParams | None = None) -> Job:
        """Make the job of *request*, which has come *now*."""
        # Requests that are sent at once reach a real engine one after the other, if only just.
        self._latest = max(now, nextafter(self._latest, inf))
        job = self.scheduler.job(request, self._accepted, self._latest)
        job.preemptions += request.migrated
        self._accepted += 1
        self._done[job] = done
        if params is not None:
            job.kv_transfer_params = params
            if params.do_remote_decode:
                params.transfer.job = job
        if not request.sequence:
            self.log.add(Received(now, request.id, self.number))
        if request.prompt_logprobs is not None and self.logprobs is not None:
            self._retime(self.logprobs(self.timers[-1]))
            self.logprobs = None
        return job

    def _retime(self, timer: Timer) -> None:
        """Price the steps of the last stage with *timer* from now on."""
        self.timers = (*self.timers[:-1], timer)

    def _changes(self, schedule: Schedule) -> list[Change]:
        """Which jobs *schedule* preempted, and which it admitted."""
        come = [(Admitted, (job.request.id, self.number, _cached(job, schedule), job.num_tokens, job.preemptions > 0,
                            job.request.sequence))
                for job in schedule.admitted if job.state is State.RUNNING and self._leads(job, now=True)]  # not lost
        return [*((Preempted, (job.request.id, self.number)) for job in schedule.preempted if self._leads(job)), *come]

    def _leads(self, job: Job, now: bool = False) -> bool:
        """Whether *job*, which may be admitted *now*, is a request's only sequence, or the first that was admitted."""
        told = self._done.get(job)
        return not isinstance(told, ParentRequest) or (told.admit(job) if now else told.leads(job))

    def _log_changes(self, changes: Sequence[Change], now: float) -> None:
        """Log *changes* of the time *now*."""
        for kind, told in changes:
            self.log.add(event := kind(now, *told))
            if self.observer is not None and self.observer.admissions and isinstance(event, Admitted):
                self.observer.admitted(event)

    def _log_finished(self, finished: Sequence[Job], time: float) -> None:
        """Log that users have the last tokens of the *finished* jobs at *time*; a router has what is only prefilled."""
        for job in finished:
            over = log_end(self.log, self.number, job, self._done[job], time)
            if self.observer is not None:
                self.observer.ended(time, job.request, over)

    def _end(self, finished: Sequence[Job]) -> None:
        """Call back whoever waits for the *finished* jobs."""
        for job in finished:
            self.outstanding -= 1
            self._done.pop(job)()

    # Transfers.

    def _wake(self) -> None:
        """Go on: a request or the end of a transfer has come."""
        if not self._news.triggered:
            self._news.succeed()

    @property
    def _awaits_transfers(self) -> bool:
        """Whether a transfer may change what the engine decides, though none of its batches is in flight."""
        return self.connector is not None and (self.scheduler.transfers_pending or self.connector.awaiting)

    @property
    def _polling(self) -> float:
        """Seconds from the end of a transfer until an engine that only polls has noticed it: half a turn, and a turn
        for each batch that may be in flight."""
        polls = self.scheduler.connector is not None and len(self.scheduler.waiting)  # SGLang's loop never sleeps
        return POLL * (0.5 + self.scheduler.limits.depth) if polls else 0.0

    def _take_in(self, turn: Turn, finished: Sequence[Job], now: float) -> None:
        """Tell the connector what the output of *turn*, taken in *now*, means for others."""
        if (connector := self.connector) is None:
            return
        connector.chunks_computed(turn.schedule, now)
        for job in finished:
            if job.kv_transfer_params is not None and job.kv_transfer_params.do_remote_decode:
                connector.finish(job, now)
        for job in turn.output.sent if turn.output else ():
            assert job.kv_transfer_params is not None, "only blocks of split requests are sent"
            self.log.add(Released(now, job.request.id, self.number, job.kv_transfer_params.transfer.blocks_lost))

    def _stuck(self, now: float, waiting: int, running: int) -> KsimError:
        policy, admission = (type(part).__name__ for part in (self.scheduler.policy, self.scheduler.admission))
        return KsimError(f"policy {policy} with admission {admission} schedules nothing at {now:.6f} s, with nothing in"
                         f" flight, {waiting} requests waiting and {running} running")


def _cached(job: Job, schedule: Schedule) -> int:
    """How many tokens of *job*, just admitted, are in the cache: those found there, and those that were loaded."""
    if job.kv_transfer_params is None or not job.kv_transfer_params.do_remote_prefill:
        return job.cached
    return next((entry.start for entry in schedule.entries if entry.job is job), job.num_computed_tokens)


@define(eq=False)
class PendingStep:
    """A step's batch on its way through the host and the stages.

    When it was scheduled, so many jobs waited and ran, and so many KV blocks were used.  In a dummy step, GPUs have
    `computed` another batch than the log has.  `step_costs` are summaries where steps are logged many at once.
    """

    scheduled: float
    batch: Batch
    waiting: int
    running: int
    blocks: int
    computed: Batch = field()
    tokens_by_rank: Sequence[int] = ()
    step_costs: tuple[Any, ...] = ()
    prepared: float = 0.0
    in_flight: InFlightBatch | None = None

    @computed.default
    def _computed(self) -> Batch:
        return self.batch
