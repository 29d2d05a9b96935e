"""What one call of the scheduler decides; vLLM's `SchedulerOutput`.

Keys and values that move beside an engine's steps: into blocks of a job, and out of them.
"""

from collections.abc import Sequence

from attrs import define, field, frozen

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.flow.request import Patches
from ksim.scheduling.job import Job


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
    contexts.  Some jobs of `entries` were `admitted` by this schedule; others were `preempted` by it.

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
