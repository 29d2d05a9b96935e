"""A request in progress on one engine, and what one call of the scheduler decides for such jobs.

One rule covers prefill, chunked prefill, decode, prefix hits and recomputation: `num_computed_tokens` catches up with
`num_tokens`, and each time it does, one more token is sampled.

A `Schedule` is vLLM's `SchedulerOutput`: tokens of jobs within `Limits`, all of them known, and the keys and values
that move beside the engine's steps, into blocks of a job and out of them.
"""

from collections.abc import Sequence
from enum import Enum
from typing import cast

from attrs import define, field, frozen
from attrs.validators import ge, gt, lt

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.flow.events import KvTransferParams
from ksim.flow.request import Patches, PlacedImage, Request
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import BlockTable


class State(Enum):
    WAITING = "waiting"
    LOADING = "loading"  # vLLM's WAITING_FOR_REMOTE_KVS: it waits too, but holds blocks that a load fills
    RUNNING = "running"
    DONE = "done"


@define
class Run:
    """Tokens that came from the engine's steps `first`, `first` + `every`, ..., `last`: `tokens` from each."""

    first: int
    last: int
    every: int = 0  # unknown while there is but one
    tokens: int = 1


@define(eq=False)
class Job:
    """`num_tokens` counts the tokens of the prompt and the sampled ones, `num_computed_tokens` those scheduled so far.

    The counts have the names of vLLM's `Request`.  With asynchronous scheduling a
    step is made while the one before it runs: `num_output_placeholders` counts the
    tokens that are scheduled to be sampled, and not back yet.  `sent` is the
    schedule that last put the job in a batch; until that batch is back, tokens of
    the job are in flight.  The job ends after `output` tokens.  The scheduler
    expects an end after `limit` tokens, which is later where a stop token ends the
    output.  `arrived` is when the job reached the engine, in seconds; an engine
    lets no two arrive at once.
    """

    request: Request
    number: int
    output: int
    limit: int
    block_table: BlockTable
    num_tokens: int
    arrived: float = 0.0
    reads_cache: bool = True
    state: State = State.WAITING
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    preemptions: int = 0
    cached: int = 0  # tokens found in the prefix cache at its latest admission
    rank: int = -1  # the number of its latest admission
    step: int = -1  # the schedule it was last part of
    sent: int = -1
    decoding: bool = False  # did its latest chunk reach the end of its tokens?
    passed_over: bool = False  # at admission, since it was last preempted: it had tokens in flight
    # While it is in the decode set, the counts above are those before schedule `start`, `end` yields its last token,
    # and `needs` says where its blocks are counted (see ksim.scheduling.decode_set).
    in_decode_set: bool = False
    start: int = 0
    end: int = 0
    final: int = 0  # of SGLang's jobs: the decode of which the scheduler thinks that it yields the last token
    needs: int = -1
    emitted: list[Run] = field(factory=list)
    kv_transfer_params: KvTransferParams | None = None
    failed: bool = False  # it ended because a load failed, or for the reason `why`
    why: str = ""
    entered: int = 0  # when it entered SGLang's queue, as a number
    prefilled_before: int = 0  # tokens that were prefilled before that
    seen: int = 0  # of its tokens, so many were there when SGLang's scheduler last looked at them
    aborted: bool = False  # it ends with the next result that it is part of, as SGLang aborts running requests
    # Of speculative decoding: tokens drafted for its next step, its chances of acceptance by position, how many
    # verifications are scheduled, and of those taken in, how many there are and how many drafts they accepted.
    drafts: int = 0
    waits_for_encoder: bool = False  # did the schedule being made pass it over, since an image cannot be encoded now?
    acceptance_rates: Sequence[float] = ()
    verifications: int = 0
    verified: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, request: Request, number: int, block_tokens: int, *, output: int | None = None,
           limit: int | None = None, block_table: BlockTable | None = None, arrived: float | None = None) -> "Job":
        """Make the job of *request*, the *number*-th of its engine; by default it yields `request.output` tokens.

        The scheduler expects it to end after *limit* tokens, by default `request.max_tokens`, or else its output.
        By default its *block_table* is one for BlockCache; every cache makes its own kind.
        """
        output = request.output if output is None else output
        limit = request.max_tokens if limit is None else limit
        return cls(request, number, output, output if limit is None else limit,
                   BlockTable(request.content(block_tokens)) if block_table is None else block_table, request.prompt,
                   request.arrival if arrived is None else arrived, reads_cache=request.prompt_logprobs is None)

    @property
    def images(self) -> Sequence[PlacedImage]:
        """The images of its prompt, which a model's processor has prepared."""
        return cast("Sequence[PlacedImage]", self.request.images)

    def sees_more(self, computed: int) -> bool:
        """Whether there are images among its tokens after the first *computed* ones."""
        return bool(self.request.images) and self.images[-1].end > computed

    @property
    def sampled(self) -> int:
        """Output tokens so far."""
        return self.num_tokens - self.request.prompt

    @property
    def backlog(self) -> int:
        """Tokens it has yet to compute before the next one is sampled; vLLM's `num_new_tokens` before any limit."""
        return self.num_tokens + self.num_output_placeholders - self.num_computed_tokens

    def emit(self, count: int, index: int, tokens: int = 1) -> None:
        """Note that tokens came from *count* of the engine's steps, up to and with *index*: *tokens* from each."""
        first = index - count + 1
        run = self.emitted[-1] if self.emitted else None
        if run is not None and (run.every or first - run.last) == first - run.last and (
                count == 1 or first - run.last == 1) and run.tokens == tokens:
            run.every, run.last = first - run.last, index
        else:
            self.emitted.append(Run(first, index, 1 if count > 1 else 0, tokens))


@frozen
class Limits:
    """The settings of vLLM's scheduler that decide schedules, by its own names, and where its versions differ.

    In older ones, the cap on a request's tokens binds one that is alone too, and
    a request that preempts itself ends the turn of those behind it.
    """

    max_num_batched_tokens: int = field(validator=gt(0))
    max_num_seqs: int = field(validator=gt(0))
    max_model_len: int = field(validator=gt(0))
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = field(default=0, validator=ge(0))
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = field(default=0.0, validator=(ge(0), lt(1)))
    prefill_schedule_interval: int = field(default=1, validator=gt(0))
    max_num_active_seqs: int | None = None
    cap_binds_lone_request: bool = False
    self_preemption_ends_turn: bool = False
    async_scheduling: bool = False
    pipeline_parallel_size: int = field(default=1, validator=gt(0))
    max_logprobs: int = field(default=20, validator=ge(-1))

    @property
    def depth(self) -> int:
        """How many batches may be in flight."""
        return self.pipeline_parallel_size + self.async_scheduling

    @property
    def active(self) -> int:
        """How many jobs may run at once."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    def cap(self, live: int) -> int:
        """Most tokens that each of *live* jobs may compute in a step; 0 is no cap, as for a job that is alone."""
        cap = self.long_prefill_token_threshold if live > 1 or self.cap_binds_lone_request else 0
        fair = self.max_num_batched_tokens // live if cap and live and self.long_prefill_token_threshold_adaptive else 0
        return max(cap, fair)

    def check(self) -> None:
        """Refuse what vLLM refuses to start with; raises ConfigError."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("max_num_batched_tokens", f"({self.max_num_batched_tokens}) must be greater than or equal"
                                                        f" to max_num_seqs ({self.max_num_seqs})")
        if self.active > self.max_num_seqs:
            raise ConfigError("max_num_active_seqs", f"({self.max_num_active_seqs}) cannot be greater than max_num_seqs"
                                                     f" ({self.max_num_seqs})")
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ConfigError("long_prefill_token_threshold", f"({self.long_prefill_token_threshold}) cannot be greater"
                                                              f" than max_model_len ({self.max_model_len})")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError("max_num_batched_tokens", f"({self.max_num_batched_tokens}) is smaller than max_model_len"
                                                        f" ({self.max_model_len}); without chunked prefill, longer"
                                                        f" prompts could never be scheduled")


@frozen
class Load:
    """KV of a job that comes from elsewhere: `tokens` tokens after the first `start`, which the prefix cache holds.

    An `asynchronous` load lets the job wait (vLLM's WAITING_FOR_REMOTE_KVS); any other ends before the step's kernels
    begin.
    """

    job: Job
    start: int
    tokens: int
    asynchronous: bool = True


@frozen(kw_only=True)
class Copy:
    """KV that a connector copies between GPU blocks of `job` and a store; vLLM's `TransferJob`.

    It copies into the blocks if it `loads`, and out of them otherwise.  Copies of an engine are numbered from 0 in the
    order in which they begin.  `chunks` are the places of the store's chunks in the job, and `keys` what the store
    calls them.  The copy moves `tokens` tokens of `blocks`, numbers of GPU blocks in the order of the tokens.  No job
    waits for one that is not `asynchronous`: it ends before a step begins.
    """

    number: int
    job: Job
    loads: bool
    chunks: Sequence[int]
    keys: Sequence[int]
    blocks: Sequence[int]
    tokens: int
    asynchronous: bool = True


@define
class ScheduledTokens:
    """So many tokens of a job, after `start` tokens that are computed already; if it `samples`, a token comes out.

    `admitted` says whether the job joins the batch with this schedule.  The tokens are of a `prompt` if the job had
    them when it was admitted: those of its own prompt, or tokens to be computed again after a preemption.
    The last `drafts` of them are drafted, of which so many will be `accepted`.
    """

    job: Job
    tokens: int
    start: int
    samples: bool
    admitted: bool
    prompt: bool
    drafts: int = 0
    accepted: int = 0


@define(eq=False)
class Schedule:
    """Schedule `number`: one token for each of `decodes`, then `entries` for other jobs, in the order of the batch.

    `decodes` are the members of the scheduler's decode set, of which this is `epoch`; `offsets` + `number` are their
    contexts.  Some jobs of `entries` were `admitted` by this schedule; others were `preempted` by it.  Of `decodes`,
    those that are `joining` were admitted, too: another engine has computed what they have.

    With a KV connector, `loads` begin with this schedule, and the workers are told with it that the blocks of the
    finished jobs `sends` may be read.  The `copies` of its store begin too, and copies with the numbers `hurried` must
    end before the batch is computed (vLLM's `jobs_to_flush`).  A vision encoder computes `images` before.
    """

    number: int = 0
    epoch: int = 0
    decodes: tuple[Job, ...] = ()
    offsets: Offsets = Offsets()
    entries: list[ScheduledTokens] = field(factory=list)
    admitted: list[Job] = field(factory=list)
    preempted: list[Job] = field(factory=list)
    joining: Sequence[Job] = ()
    loads: Sequence[Load] = ()
    sends: Sequence[Job] = ()
    copies: Sequence[Copy] = ()
    hurried: Sequence[int] = ()
    images: tuple[Patches, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.decodes or self.entries)

    def batch(self) -> Batch:
        """What kernels see of it, and whose prompts are in it."""
        offsets, chunks, singles, prompts = self.offsets, [], [], []
        samples = tokens = len(offsets)
        for entry in self.entries:
            if entry.tokens == 1:
                singles.append(entry.start - self.number)
            else:
                chunks.append((entry.tokens, entry.start))
            if entry.prompt:
                prompts.append((entry.job.request.id, entry.tokens, entry.start))
            samples += entry.samples
            tokens += entry.tokens
        if singles:
            offsets = offsets.plus(singles)
        prompts += [(job.request.id, 1, job.num_computed_tokens) for job in self.joining if job.in_decode_set]
        return Batch(Contexts(offsets, self.number), tuple(chunks), samples, tokens, tuple(prompts),
                     images=self.images, prompt_logprobs=self.prompt_logprobs() if prompts else None)

    def prompt_logprobs(self) -> int | None:
        """How many log-probabilities at each place the prompts of its batch ask for at most; None without any.

        A prompt that is computed again after its first token had them before.
        """
        asked = [entry.job.request.prompt_logprobs for entry in self.entries
                 if entry.prompt and entry.start < entry.job.request.prompt == entry.job.num_tokens]
        wanted = {number for number in asked if number is not None}
        return -1 if -1 in wanted else max(wanted, default=None)

    def touched(self, block_tokens: int) -> int:
        """How many KV blocks it looks up or fills for prompts; those found in the cache are looked up on admission."""
        blocks = 0
        for entry in self.entries:
            if entry.prompt and (entry.tokens > 1 or entry.admitted):
                blocks -= -(entry.tokens + entry.start * entry.admitted) // block_tokens
        return blocks

    def all_entries(self) -> list[ScheduledTokens]:
        """The decodes written out as entries, and the other entries."""
        decodes = [ScheduledTokens(job, 1, offset + self.number, samples=True, admitted=False, prompt=False)
                   for job, offset in zip(self.decodes, self.offsets, strict=True)]
        return decodes + self.entries


@frozen
class EncoderLimits:
    """So many embeddings may be computed in a step (`budget`), and kept (`cache`); a prompt has at most so many
    `images`.  Unless `chunked`, no chunk of a prompt ends inside an image."""

    budget: int
    cache: int
    images: int = 999
    chunked: bool = True
