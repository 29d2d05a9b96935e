"""What one call of the scheduler decides."""

from attrs import define, field

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.scheduling.job import Job


@define
class Grant:
    """So many tokens of a job, on top of `start` computed before; if it `samples`, a token comes out.

    They are of a `prompt` if the job knew them when it was admitted: of its own, or to be computed again.
    """

    job: Job
    tokens: int
    start: int
    samples: bool
    admitted: bool
    prompt: bool


@define(eq=False)
class Assignment:
    """What schedule `number` decided: a token for each of `steady`, and `grants` for the others, in this order.

    Some of these were `admitted`; others had to give way to them.
    """

    number: int = 0
    epoch: int = 0
    steady: tuple[Job, ...] = ()
    offsets: Offsets = Offsets()
    grants: list[Grant] = field(factory=list)
    admitted: list[Job] = field(factory=list)
    preempted: list[Job] = field(factory=list)

    def __bool__(self) -> bool:
        return bool(self.steady or self.grants)

    def batch(self) -> Batch:
        """What it amounts to for kernels, and whose prompts are in it."""
        offsets, chunks, singles, prompts = self.offsets, [], [], []
        samples = tokens = len(offsets)
        for grant in self.grants:
            if grant.tokens == 1:
                singles.append(grant.start - self.number)
            else:
                chunks.append((grant.tokens, grant.start))
            if grant.prompt:
                prompts.append((grant.job.request.id, grant.tokens, grant.start))
            samples += grant.samples
            tokens += grant.tokens
        if singles:
            offsets = offsets.plus(singles)
        return Batch(Contexts(offsets, self.number), tuple(chunks), samples, tokens, tuple(prompts))

    def touched(self, block_tokens: int) -> int:
        """How many KV blocks it looks up or fills for prompts; those found in the cache are looked up on admission."""
        blocks = 0
        for grant in self.grants:
            if grant.tokens > 1 or grant.admitted:
                blocks -= -(grant.tokens + grant.start * grant.admitted) // block_tokens
        return blocks

    def all_grants(self) -> list[Grant]:
        """The steady jobs' grants written out, and the others."""
        steady = [Grant(job, 1, offset + self.number, samples=True, admitted=False, prompt=False)
                  for job, offset in zip(self.steady, self.offsets, strict=True)]
        return steady + self.grants
