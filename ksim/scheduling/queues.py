"""The jobs of an engine: those that wait, in the order of its policy, those that run, and what batches bring back.

Policies and admissions, which may be plug-ins, are held to their contracts.
"""

import reprlib
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attrs import define, field
from sortedcontainers import SortedDict

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError, KsimError
from ksim.kv.cache import BlockTable, Cache
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.connector import Connector, ConnectorOutput
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job, Limits, Schedule, ScheduledTokens, State
from ksim.scheduling.policies import Wish

if TYPE_CHECKING:
    from ksim.scheduling.adapter_store import AdapterStore

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
        return SortedQueue(self.order) if hasattr(self.policy, "order") else ArrivalQueue()

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

    def order(self, job: Job) -> Any:
        """The key of *job* by the policy's order."""
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


@define(eq=False)
class JobQueues:
    """`running` jobs hold cache blocks, in order of admission; waiting ones hold none.

    The first of the running jobs are in the set `decodes`.  `latest` is the
    schedule made last, number `steps`; `changed` says whether any job has come,
    gone or computed a prompt since.
    """

    limits: Limits
    policy: Any
    cache: Cache
    admission: Any = field(factory=Always)
    waiting: WaitingQueue = field(init=False)
    running: list[Job] = field(factory=list, init=False)
    steps: int = field(default=0, init=False)
    latest: Schedule = field(factory=Schedule, init=False)
    guard: PolicyGuard = field(init=False)
    decodes: DecodeSet = field(init=False)
    changed: bool = field(default=True, init=False)

    #: Slots that a job may need beyond its tokens: for drafted ones, and for a drafter with KV of its own.
    spare_slots: ClassVar[int] = 0
    #: What loads and sends KV; only a `ConnectorScheduler` has one.
    connector: ClassVar[Connector | None] = None
    #: Whether chunks of prompts may end before images; only those of an `ImageScheduler` may.
    encodes: ClassVar[bool] = False
    #: Where LoRA adapters are; only an `AdapterScheduler` has some.
    adapters: ClassVar["AdapterStore | None"] = None

    @property
    def steady(self) -> bool:
        """Whether no load or send of KV changes the next schedule."""
        return True

    @property
    def asked(self) -> WaitingQueue:
        """The waiting jobs that each schedule asks for; those whose KV is being loaded are not."""
        return self.waiting

    @property
    def releases_soon(self) -> bool:
        """Whether jobs that only decode still hold something that waiting ones may need, other than blocks."""
        return False

    def __attrs_post_init__(self) -> None:
        if hasattr(self.policy, "attach"):
            self.policy.attach(self.cache)
        self.guard = PolicyGuard(self.policy, self.admission)
        self.waiting = self.guard.queue()
        self.decodes = DecodeSet(self.cache, self.limits.async_scheduling, self.limits.max_model_len)

    @property
    def has_requests(self) -> bool:
        """Whether vLLM's engine core would take another turn: jobs wait or run (or blocks are held)."""
        return bool(self.running or self.waiting)

    @property
    def transfers_pending(self) -> bool:
        """Whether the workers have yet to report the end of a load or of a send."""
        return False

    def block_table(self, request: Request) -> BlockTable:
        """An empty block table for *request*."""
        return self.cache.block_table(request)

    def job(self, request: Request, number: int, arrived: float) -> Job:
        """The job of *request*, the *number*-th of its engine, which reached it at the time *arrived*."""
        return Job.of(request, number, self.cache.block_tokens, block_table=self.block_table(request.keyed),
                      arrived=arrived)

    def length_refusal(self, request: Request) -> str:
        """Why *request* is too long for this engine; "" if it is not."""
        longest, cache = self.limits.max_model_len, self.cache
        if request.prompt >= longest:
            return f"its prompt of {request.prompt} tokens leaves no room for output in max_model_len = {longest}"
        tokens = min(request.prompt + request.output, longest) - 1  # the last one is sampled, and not computed on
        tokens = min(tokens + self.spare_slots, longest)
        if cache.blocks(tokens) > cache.capacity:
            return (f"its cache of {tokens} tokens needs {cache.blocks(tokens)} KV blocks of {cache.block_tokens},"
                    f" and there are {cache.capacity}")
        return ""

    @property
    def foreseen(self) -> list[list[int]]:
        """Of each job of the decode set: the output tokens that it has yet to get, and those that it has computed."""
        return [[job.end - self.steps, job.num_computed_tokens + min(self.steps, job.end) - job.start]
                for job in self.running[:self.decodes.length]]

    @property
    def others(self) -> Sequence[Job]:
        """The running jobs that are not in the decode set."""
        return self.running[self.decodes.length:]

    def images_refusal(self, request: Request) -> str:
        """Why the images of *request* cannot be served; "" if they can."""
        return "it has images, and the model takes none"

    @property
    def limits_adapters(self) -> bool:
        """Whether a waiting job may be passed over because of its LoRA adapter."""
        return False

    def next_in_line(self, waiting: WaitingQueue) -> Job | None:
        """The first of the *waiting* jobs that admission does not pass over, if there is one."""
        return next(iter(waiting), None)

    def add(self, job: Job) -> None:
        """Add *job* to the waiting queue."""
        self.changed = True
        self.waiting.add(job)

    def abort(self, job: Job) -> None:
        """Drop *job*, waiting or running; its tokens in flight are lost."""
        self.changed = True
        if job.state in (State.WAITING, State.LOADING):
            self.waiting.remove(job)
        elif job.state is State.RUNNING:
            if job.in_decode_set:
                self.decodes.leave([job], self.steps)
            self.running.remove(job)
            self._release(job)
        job.state = State.DONE

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        """Take in the tokens of *schedule*, which was the engine's step number *index*; return the jobs now done.

        vLLM's `update_from_output`.  *output* is what the workers of a KV connector report with it.
        """
        decodes, finished = self.decodes, list[Job]()
        decodes.returned, decodes.index = schedule.number, index
        self.changed |= bool(schedule.entries)  # waiting jobs may find the computed tokens in the cache
        if self.cache.publishes_computed:
            for entry in schedule.entries:
                self._share(entry)
        if schedule.epoch == decodes.epoch:
            if ending := decodes.ends(schedule.number):
                decodes.leave(ending, self.steps)
                finished += ending
        else:
            finished += [job for job in schedule.decodes if self._deliver(job, index)]
        finished += self._deliver_entries(schedule, index)
        for job in finished:
            self._finish(job)
        return finished

    def _share(self, entry: ScheduledTokens) -> None:
        """Tell the cache that a chunk of a prompt is computed, unless its job was preempted since."""
        job = entry.job
        prefill = entry.admitted or entry.tokens > 1 or entry.start < job.request.prompt
        if prefill and job.state is State.RUNNING:
            self.cache.publish_computed(job.block_table, min(entry.start + entry.tokens, job.num_computed_tokens))

    def _deliver_entries(self, schedule: Schedule, index: int) -> list[Job]:
        """Give the jobs of the entries of *schedule* their tokens; return those that are done."""
        return [entry.job for entry in schedule.entries if entry.samples and self._deliver(entry.job, index)]

    def _deliver(self, job: Job, index: int) -> bool:
        """Give *job* the token sampled for it; return whether it is its last."""
        if job.state is State.DONE:
            return False
        job.num_tokens += 1
        job.emit(1, index)
        if self.limits.async_scheduling:
            job.num_output_placeholders -= 1
        if job.in_decode_set:
            return False
        done = job.sampled >= job.output or job.num_tokens >= self.limits.max_model_len
        if self.limits.async_scheduling and job.state is State.RUNNING:
            self.cache.publish(job.block_table, job.num_computed_tokens - job.num_output_placeholders)
        return done

    def _finish(self, job: Job) -> None:
        self.changed = True
        if job.state is State.WAITING:  # preempted while its last token was in flight
            self.waiting.remove(job)
        else:
            self.running.remove(job)
            self._release(job, job.num_computed_tokens - job.num_output_placeholders)
        job.state = State.DONE

    def _release(self, job: Job, tokens: int = 0) -> None:
        """Give back the blocks of *job*, which has ended; if it is complete, so many *tokens* are computed."""
        self.cache.free(job.block_table, tokens)

    # Schedules that ScheduleForecast knows to be just like the latest need not be made.

    def affords(self, repeats: int) -> int:
        """For how many of so many *repeats* there are blocks for certain."""
        return self.decodes.affords(repeats, self.steps)

    def repeat(self) -> bool:
        """Make a schedule like the latest one; return False, with nothing done, where blocks are short."""
        if not self.decodes.renew(self.steps + 1):
            return False
        self.steps += 1
        return True

    def sync(self, index: int) -> Schedule:
        """Catch up after repeats: the engine's steps up to number *index* are back; return the latest schedule."""
        decodes = self.decodes
        decodes.returned, decodes.index = self.steps - self.limits.async_scheduling, index
        return self.repeated()

    def repeated(self) -> Schedule:
        """The schedule that the last repeat made."""
        self.latest = Schedule(self.steps, self.decodes.epoch, self.decodes.members, self.decodes.offsets)
        return self.latest
