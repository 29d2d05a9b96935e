"""SGLang's running batch: the jobs that decode, in their order; each of them gets a token from every decode.

Nothing is counted for them decode by decode.  A job that joins notes how many decodes there were; its tokens follow
from that, from the number of decodes that were launched, and from that of the decodes that have come back.  A calendar
says with which decode a job ends.  Decodes have numbers of their own, since prompts come between them.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ksim.flow.batch import Offsets
from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.job import Job, Run, State

__all__ = ["RunningBatch"]

#: The number of a decode that is never launched.
_NEVER = 1 << 62
#: Nobody's prospects.
_NOBODY = np.zeros((0, 4), np.int64)


@define(eq=False)
class RunningBatch:
    """`jobs` decode; after `launched` decodes, of which `returned` have come back.

    Its queue is not looked at while it is `full`.  `grown_from` counts the tokens of the prefill that it has grown
    from.  No decode is made while it has grown of jobs alone that may have no output (`prompts_only`).  If it
    `foresees`, jobs leave it while their last token is in flight, where length is what ends them.
    """

    cache: RadixCache
    foresees: bool
    jobs: list[Job] = field(factory=list)
    full: bool = False
    grown_from: int = 0
    prompts_only: bool = False
    members: tuple[Job, ...] = ()
    offsets: Offsets = Offsets()
    #: Of each of `jobs`: its output tokens yet to come when it joined, with which decode they begin and end to come,
    #: and whether it ignores the stop token.
    _prospects: NDArray[np.int64] = field(default=_NOBODY)
    epoch: int = 0  # grows when all are counted anew
    launched: int = 0
    returned: int = 0
    leaving: dict[Job, None] = field(factory=dict)  # no longer of the batch: their last token is in flight
    _aborted: list[Job] = field(factory=list)
    _ends: dict[int, list[Job]] = field(factory=dict)  # by decode: who ends with its result
    _order: list[int] = field(factory=list)  # a heap of when somebody ends, or would have
    _foreseen: dict[int, list[Job]] = field(factory=dict)  # by decode: whose last token it is, as the scheduler knows
    _needs: Counter[int] = field(factory=Counter)  # by the remainder of a decode's number: who needs a page before it
    _ranks: int = 0
    _planned: int = 0  # the number of the latest decode that was not a repeat
    # From which decode on the engine's steps have which numbers: prompts come between them.
    _decodes: list[int] = field(factory=list)
    _steps: list[int] = field(factory=list)

    def __len__(self) -> int:
        return len(self.jobs)

    # Joining and leaving.

    def join(self, jobs: Sequence[Job]) -> None:
        """Let *jobs* decode from the next decode on, behind the others."""
        for job in jobs:
            job.in_decode_set, job.start, job.rank = True, self.launched, self._ranks
            self._ranks += 1
            have = job.sampled + job.num_output_placeholders
            final = self.launched + max(job.limit - have, 0)
            job.end = min(final, self.launched + job.output - have)
            if job.end > self.launched:
                if job.end not in self._ends:
                    heappush(self._order, job.end)
                self._ends.setdefault(job.end, []).append(job)
            job.final = final if self.foresees else _NEVER
            if self.foresees:
                self._foreseen.setdefault(final, []).append(job)
            job.needs = (job.start - job.num_computed_tokens) % self.cache.block_tokens
            self._needs[job.needs] += 1
            if job.aborted:
                self._aborted.append(job)
        self.jobs += jobs
        self.members += tuple(jobs)
        self.offsets = self.offsets.plus([job.num_computed_tokens - self.launched - 1 for job in jobs])
        self._prospects = np.concatenate([self._prospects, [
            (job.limit - job.sampled, job.start, job.end, job.request.ignore_eos) for job in jobs]])

    def drop(self, jobs: Iterable[Job]) -> int:
        """Let *jobs* decode no more; return how many of them did."""
        dropped = 0
        for job in jobs:
            if (place := self._place(job)) is not None:
                self.members = self.members[:place] + self.members[place + 1:]
                self.offsets = self.offsets.without(place)
                self._prospects = np.delete(self._prospects, place, axis=0)
                del self.jobs[place]
                self._needs[job.needs] -= 1
                dropped += 1
        return dropped

    def _place(self, job: Job) -> int | None:
        place = bisect_left(self.members, job.rank, key=_rank)
        return place if place < len(self.members) and self.members[place] is job else None

    def receive(self, job: Job) -> None:
        """Note that *job* has got the token that was in flight when it joined."""
        if (place := self._place(job)) is not None:
            self._prospects[place, 0] -= 1

    def finishing(self) -> list[Job]:
        """Take from the batch those whose last token is in flight, as the scheduler can foresee; return them."""
        if not self.foresees:
            return []
        finishing = [job for job in self._foreseen.pop(self.launched, ())
                     if job.in_decode_set and job.final == self.launched and job.state is State.RUNNING]
        self.drop(finishing)
        self.leaving |= dict.fromkeys(finishing)
        return finishing

    # Decodes.

    def pages(self) -> int:
        """How many pages the next decode needs."""
        return self._needs[self.launched % self.cache.block_tokens]

    def launch(self, pages: int) -> None:
        """Launch a decode, which takes so many empty *pages*; repeats of it may come back together."""
        self.cache.take(pages)
        self.launched += 1

    def begin_repeats(self) -> None:
        """Note that the next decode is planned, and not a repeat: the engine's steps before it may be of prompts."""
        self._planned = self.launched + 1

    def come_back(self, decode: int, step: int) -> list[Job]:
        """Note that the decode of this number, the engine's step number *step*, has come back; return whom it ends."""
        self.returned = decode
        first = max(min(self._planned, decode), self._decodes[-1] + 1 if self._decodes else 0)
        if not self._steps or self._steps[-1] + decode - self._decodes[-1] != step:
            self._decodes.append(first)
            self._steps.append(step - decode + first)
        ending = [job for job in self._ends.pop(decode, ()) if job.end == decode]
        if self._aborted:
            ending += [job for job in self._aborted if job.start < decode]
            self._aborted = [job for job in self._aborted if job.start >= decode]
        return sorted({job for job in ending if job.in_decode_set}, key=_rank)

    def catch_up(self, decode: int, step: int) -> None:
        """Note that repeats up to the decode of this number have come back, the engine's step number *step*."""
        if self.launched > self._planned:
            self.come_back(decode, step)

    def first_end(self) -> int:
        """The number of the first decode that ends a job, as far as that is known; of the latest one without jobs."""
        order = self._order
        while order and not any(job.in_decode_set and job.end == order[0] for job in self._ends.get(order[0], ())):
            heappop(order)
        return order[0] if order and not self._aborted else self.launched

    # Counts.

    def sampled(self, job: Job) -> int:
        """Output tokens of *job* that have come back."""
        return job.sampled + (self._back(job) if job.in_decode_set else 0)

    def _back(self, job: Job) -> int:
        return max(0, min(self.returned, job.end) - job.start)

    def expected(self, ratio: float, most: int) -> float:
        """The tokens that jobs of the batch are expected to yield yet: *ratio* of what is left, or all where a job
        ignores the stop token, and no more than *most* of each."""
        left, start, end, ignoring = self._prospects.T
        left = np.minimum(left - (np.clip(self.returned, start, end) - start), most)
        return float(np.cumsum(left * np.where(ignoring, 1.0, ratio))[-1]) if len(left) else 0.0  # summed in order

    def settle(self, job: Job) -> None:
        """Bring the counts of *job* up to date: it is counted one by one from now on."""
        launched, back = min(self.launched, job.final) - job.start, self._back(job)
        if runs := self._runs(job):
            job.emit(runs[0].last - runs[0].first + 1, runs[0].last)
            job.emitted += runs[1:]
        job.in_decode_set = False
        job.num_computed_tokens += launched
        job.num_tokens += back
        job.num_output_placeholders += launched - back
        self.cache.assign(job.block_table, job.num_computed_tokens)

    def dissolve(self) -> list[Job]:
        """Settle all jobs; return those of the batch, which has none now."""
        jobs = self.jobs
        for job in (*jobs, *self.leaving):
            if job.in_decode_set:
                self.settle(job)
        self.jobs, self.members, self.offsets, self._prospects, self._aborted = [], (), Offsets(), _NOBODY, []
        self._ends.clear()
        self._order.clear()
        self._foreseen.clear()
        self._needs.clear()
        self.epoch += 1
        return jobs

    def emitted(self, job: Job) -> list[Run]:
        """The tokens of *job*, of the batch or not, by the steps that have come back."""
        return [*job.emitted, *self._runs(job)] if job.in_decode_set else job.emitted

    def _runs(self, job: Job) -> list[Run]:
        """The steps of the decodes from which *job* has tokens."""
        first, last = job.start + 1, job.start + self._back(job)
        if first > last:
            return []
        place, behind = bisect_right(self._decodes, first) - 1, bisect_right(self._decodes, last)
        begins = [first, *self._decodes[place + 1:behind]]
        return [Run(begin + step - decode, end + step - decode, 1) for begin, end, step, decode in zip(
            begins, [*(after - 1 for after in begins[1:]), last], self._steps[place:behind],
            self._decodes[place:behind], strict=True)]

    def abort(self, job: Job) -> None:
        """End *job* with the next result that it is part of."""
        if job.in_decode_set:
            self._aborted.append(job)


def _rank(job: Job) -> int:
    return job.rank
