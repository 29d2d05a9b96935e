"""Policies that choose between prompts and decodes."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from attrs import define, field, frozen
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish, granted

__all__ = ["PrefillFirst", "DecodeFirst", "StallFree", "RequestLevel", "Orca"]


@frozen
class PrefillFirst:
    """Prompts first: a step decodes only if it has no prompt to compute.

    Steps of prompts alone, running ones before waiting ones, or of decodes alone.

    Source: vLLM's V0 scheduler (Kwon et al., SOSP 2023) without chunked
    prefill.  Good for: the time to first token; each arrival stalls all
    decodes, which the tail of the inter-token latency shows.  Whole prompts, as
    V0 had them, take ``enable_chunked_prefill = false``.

        scheduling_policy = "prefill_first"
    """

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        prompts, idle = [job for job in running if job.backlog > 1], True
        for job in chain(prompts, waiting):
            before = job.step
            yield job, ALL
            idle = idle and not granted(job, before)
        if idle:
            yield from ((job, ALL) for job in running if job not in prompts)


@frozen
class DecodeFirst:
    """Decodes before all prefills, which share what budget is left.

    No running prefill takes a decode's place in a batch.

    Source: the order of Sarathi-Serve's batches (OSDI 2024), without its
    budget; see `stall_free` for that.  Good for: token budgets so small that
    chunks of prompts would crowd decodes out.  `chunk` is the most tokens of
    one prompt in a step.

        scheduling_policy = {name = "decode_first", chunk = 512}
    """

    chunk: int = field(default=ALL, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        yield from ((job, 1) for job in running if job.backlog == 1)
        yield from ((job, self.chunk) for job in running if job.backlog > 1)
        yield from ((job, self.chunk) for job in waiting)


@frozen
class StallFree:
    """Stall-free batches: all decodes, and as many tokens of prompts as a budget leaves.

    Each decode is in each step; prompts, running ones first, fill the step up to `budget` tokens.

    Source: Sarathi-Serve (Agrawal et al., OSDI 2024), algorithm 3.  Good for:
    an inter-token latency that does not depend on who arrives: `budget`, in
    tokens a step, is chosen so that a full step just keeps the target.  Where
    there are more decodes than that, prompts wait.

        scheduling_policy = {name = "stall_free", budget = 512}
    """

    budget: int = field(default=512, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        prompts, left = [], self.budget
        for job in running:
            if job.backlog > 1:
                prompts.append(job)
                continue
            before, tokens = job.step, 1 + job.drafts
            yield job, 1
            left -= tokens * granted(job, before)
        for job in chain(prompts, waiting):
            if left <= 0:
                return
            before = job.step
            yield job, left
            if granted(job, before):
                left -= min(left, job.backlog)  # one just admitted need not compute what the prefix cache had


@define(eq=False)
class RequestLevel:
    """Static batches: nobody is admitted until the whole batch before has ended.

    A batch is filled and its prompts computed, then all of it decodes until the last has ended.

    Source: how FasterTransformer and Triton batched, the baseline of Orca (Yu
    et al., OSDI 2022).  Good for: the classic comparison; slots stand empty as
    the shorter outputs of a batch end.  A batch has at most `batch` requests,
    fewer where fewer wait or fit.  Kinder than the original in two ways: an
    output is out when it ends, and slots that stand empty cost nothing.  With
    ``admission = "reserve_output"``, memory is set aside for the outputs.

        scheduling_policy = {name = "request_level", batch = 32}
    """

    batch: int = field(default=32, validator=gt(0))
    _open: bool = field(default=True, init=False)

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        self._open = self._open or not running
        if self._open:
            prompts, filled = [job for job in running if job.backlog > 1], False
            for job in chain(prompts, islice(waiting, max(0, self.batch - len(running)))):
                before = job.step
                yield job, ALL
                filled = granted(job, before) or filled
            self._open, running = filled, [job for job in running if job not in prompts]
        if not self._open:
            yield from ((job, ALL) for job in running)


@frozen
class Orca:
    """Iteration-level batches: after each step, those that ended leave and those that came first join.

    First come, first served, at most `batch` requests in progress.

    Source: Orca (Yu et al., OSDI 2022), algorithm 1.  Good for: the classic
    comparison, between request-level and paged.  Three settings make the rest
    of it: prompts are computed whole, each request has memory for its longest
    output set aside from the start, and nothing is shared.

        scheduling_policy = {name = "orca", batch = 32}
        admission = "reserve_output"
        enable_chunked_prefill = false
        enable_prefix_caching = false
    """

    batch: int = field(default=32, validator=gt(0))

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        return ((job, ALL) for job in chain(running, islice(waiting, max(0, self.batch - len(running)))))
