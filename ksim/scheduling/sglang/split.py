"""SGLang's scheduler on either side of a disaggregated pair: one prefills, and the other decodes.

The rules are those of SGLang 0.5.23 (srt/disaggregation/prefill.py and decode.py).  What happens between the two sides
is told by calls: `bootstrapped` when they have met for a job, and `transferred` when its keys and values are over.
"""

from collections.abc import Callable
from typing import ClassVar

from attrs import define, field

from ksim.flow.request import Request
from ksim.scheduling.job import Job, Load, Schedule, State
from ksim.scheduling.sglang.prefill_pass import CLIP
from ksim.scheduling.sglang.scheduler import SglangScheduler

__all__ = ["DecodeSide", "PrefillSide"]

#: Buffers for what goes with the keys and values of a job, such as its first token, for each place.
BUFFERS = 2


@define(eq=False)
class SplitSide(SglangScheduler):
    """Either side: some jobs have `ended` beside the batches, since somebody cleared the list."""

    ended: list[Job] = field(factory=list, init=False)
    _met: set[Job] = field(factory=set, init=False)  # of those that came and do not wait yet

    @property
    def ready(self) -> list[Job]:
        """Who waits for nothing but a place in a batch."""
        return self._queue.jobs

    @property
    def asking(self) -> list[Job]:
        """Who waits to meet the other side."""
        raise NotImplementedError

    def add(self, job: Job) -> None:
        """Let *job* come.  If it is aborted it ends now."""
        if job.aborted:
            self._end(job)
        else:
            super().add(job)

    def bootstrapped(self, job: Job) -> None:
        """Note that both sides have met for *job*."""
        self._met.add(job)

    def _end(self, job: Job) -> None:
        job.state, job.aborted = State.DONE, True
        self.ended.append(job)

    def independent_of_arrivals(self, newcomers: bool) -> bool:
        return not (newcomers or self.transfers_pending)


@define(eq=False)
class PrefillSide(SplitSide):
    """The side that prefills: a job holds its memory until its keys and values have arrived on the other.

    A job is `bootstrapping` until the other side has memory for it, and there is a buffer.  Then it waits as any other.
    Jobs `inflight` are prefilled.  `send` is called with a job and the number of its first tokens that may be sent.
    """

    send: Callable[[Job, int], object] = field(default=lambda job, tokens: None, kw_only=True)
    bootstrapping: list[Job] = field(factory=list, init=False)
    inflight: list[Job] = field(factory=list, init=False)

    @property
    def transfers_pending(self) -> bool:
        return bool(self.bootstrapping or self.inflight)

    @property
    def asking(self) -> list[Job]:
        return [*self.bootstrapping, *self._coming]

    @property
    def waiting(self) -> list[Job]:
        return [*self.ready, *self.asking]

    # Requests come and go.

    def _enter(self, job: Job) -> None:
        """Let *job* wait for the other side; it ends after its first token here."""
        job.limit = 1
        self.bootstrapping.append(job)

    def transferred(self, job: Job) -> None:
        """End *job*, whose keys and values have arrived, or are not wanted any more; the tree keeps them."""
        self.inflight.remove(job)
        self._release(job, job.request.prompt)

    def abort(self, job: Job) -> None:
        """Drop *job* if it waits; one whose prompt is computed ends with the result, and one `inflight` once it is said
        to be `transferred`."""
        if (coming := job in self._coming) or job in self.bootstrapping:
            (self._coming if coming else self.bootstrapping).remove(job)
            self._met.discard(job)
            self._end(job)
        else:
            super().abort(job)

    # A turn.

    def _look_for_jobs(self) -> None:
        """See who has come, and let those wait for a batch that the other side has memory for."""
        super()._look_for_jobs()
        for job in [job for job in self.bootstrapping if job in self._met]:
            if len(self.ready) + self._rows >= BUFFERS * self.limits.max_running_requests:
                break
            self.bootstrapping.remove(job)
            self._met.remove(job)
            self._queue.enter(job, self._prefilled)

    def _publish_chunk(self) -> None:
        if self._cut is not None:
            self.send(*self._cut)
        super()._publish_chunk()

    def _merge(self) -> None:
        """Forget that there was no room: nobody decodes here."""
        self.batch.full = False

    def _holds_back(self) -> bool:
        return False

    def _start(self, job: Job, before: int, tokens: int, schedule: Schedule) -> None:
        if job.state is State.WAITING and before:
            self.send(job, before)
        super()._start(job, before, tokens, schedule)

    def _deliver(self, job: Job, index: int) -> bool:
        """Give *job* its first token, and send the rest of its prompt; return whether it has ended instead."""
        if job.state is not State.RUNNING:
            return False
        job.num_output_placeholders -= 1
        if job.aborted:
            self._release(job)
            return True
        job.num_tokens += 1
        job.emit(1, index)
        self.inflight.append(job)
        self.send(job, job.request.prompt)
        return False


@define(eq=False)
class DecodeSide(SplitSide):
    """The side that decodes: a job gets the memory for its whole prompt before the other side computes it.

    Jobs `arriving` have none yet, those `receiving` have it, and those `set_aside` were retracted.  `begin` is called
    with what a job that has memory now is to load.  The first token of a job comes with its keys and values: no step
    here has sampled it.
    """

    begin: Callable[[Load], object] = field(default=lambda load: None, kw_only=True)
    arriving: list[Job] = field(factory=list, init=False)
    receiving: list[Job] = field(factory=list, init=False)
    set_aside: list[Job] = field(factory=list, init=False)
    _received: set[Job] = field(factory=set, init=False)  # of those that receive
    _joined: list[Job] = field(factory=list, init=False)  # in the latest turn

    foresees: ClassVar[bool] = False

    @property
    def transfers_pending(self) -> bool:
        return bool(self.receiving) or any(job not in self._met for job in self.arriving)

    @property
    def asking(self) -> list[Job]:
        return [*self.arriving, *self._coming]

    @property
    def waiting(self) -> list[Job]:
        return [*self.set_aside, *self.ready, *self.receiving, *self.asking]

    @property
    def others(self) -> list[Job]:
        return [*self.receiving, *self.ready]

    def length_refusal(self, request: Request) -> str:
        """Why *request* is too long for this engine; "" if it is not: with the reserve, its prompt must find room."""
        pool, reserve = self.cache.capacity * self.cache.block_tokens, self.limits.num_reserved_decode_tokens
        if self._paged(request.prompt) + reserve <= pool:
            return super().length_refusal(request)
        return (f"its prompt of {request.prompt} tokens, with num_reserved_decode_tokens = {reserve}, is longer than"
                f" the pool of {pool}")

    # Requests come and go.

    def _enter(self, job: Job) -> None:
        """Let *job* arrive."""
        self.arriving.append(job)

    def transferred(self, job: Job) -> None:
        """Note that the keys and values of *job* have arrived."""
        self._received.add(job)

    def _requeue(self, job: Job) -> None:
        """Set *job* aside: its keys and values are kept elsewhere until there is room for them."""
        self._queue.number(job, self._prefilled)
        self.set_aside.append(job)

    def abort(self, job: Job) -> None:
        """Drop *job* if it waits; if it arrives or receives, it ends once those are looked at, and if it runs, with the
        next result that it is part of."""
        job.aborted = True
        if job in self._coming:
            self._coming.remove(job)
            self._met.discard(job)
            self._end(job)
        elif job in self.ready:
            self.ready.remove(job)
            self._release(job, job.num_computed_tokens)
            self.rejected.append(job)
        elif job in self.set_aside:
            self.set_aside.remove(job)
            self._queue.reject(job)
        elif job in self.arriving:
            self._met.add(job)
        elif job in self.receiving:
            self._received.add(job)
        else:
            self.batch.abort(job)

    # A turn.

    def schedule(self, now: float) -> Schedule:
        """Plan the next decode.  Who joins it and is retracted at once was never there."""
        schedule = super().schedule(now)
        lost = [job for job in self._joined if job in schedule.preempted]
        for job in lost:
            job.preemptions -= 1
        schedule.preempted = [job for job in schedule.preempted if job not in lost]
        schedule.admitted = schedule.joining = [job for job in self._joined if job not in lost]
        return schedule

    @property
    def _goes_on(self) -> bool:
        """Or let those join who wait for the place of one that ended."""
        return super()._goes_on or bool(self.ready and len(self.batch) < self.limits.max_running_requests)

    def _look_for_jobs(self) -> None:
        """See who has come; retracted jobs get memory first, and others only where none is left of them."""
        super()._look_for_jobs()
        self._resume()
        if not self.set_aside:
            self._allocate()
            self._receive()

    def _holds_back(self) -> bool:
        """Say that nothing is prefilled here."""
        return True

    def _resume(self) -> None:
        """Let those come back that were retracted, in their order, while there is room."""
        while self.set_aside and self._rows < self.limits.decode_rows:
            job = self.set_aside[0]
            tokens = job.num_tokens - 1
            if self._paged(tokens) + self.limits.num_reserved_decode_tokens > self._budget(0):
                return
            self._hold(job, tokens)
            self.ready.append(self.set_aside.pop(0))

    def _allocate(self) -> None:
        """Give those that arrive memory, in their order, while there is room."""
        limits, jobs = self.limits, self.batch.jobs
        for job in [job for job in self.arriving if job.aborted]:
            self._leave(job)
            self._end(job)
        if limits.enable_priority_scheduling:
            self.arriving.sort(key=lambda job: limits.sign * job.request.priority)
        held = sum(job.request.prompt + self.batch.sampled(job) for job in jobs)
        longest = max((job.request.prompt + min(job.limit, CLIP) for job in jobs), default=held)
        for job in [job for job in self.arriving if job in self._met]:
            if len(self.receiving) >= BUFFERS * limits.max_running_requests or self._rows >= limits.decode_rows:
                return
            if not self._take(job, held, longest - held):
                return
            self._leave(job)
            self.receiving.append(job)
            self.begin(Load(job, job.cached, job.request.prompt - job.cached))

    def _leave(self, job: Job) -> None:
        self.arriving.remove(job)
        self._met.discard(job)

    def _take(self, job: Job, held: int, single: int) -> bool:
        """Take memory for the prompt of *job*, if there is enough; return whether there is.

        The running jobs have *held* so many tokens, which a retraction would free, and one of them may need *single*
        more than that.
        """
        table, prompt = job.block_table, job.request.prompt
        job.cached, node = self.cache.look_up(table, prompt)
        self.cache.lock(table, job.cached, node)
        needed = max(self._paged(prompt) - job.cached + self.limits.num_reserved_decode_tokens,
                     prompt - job.cached + min(job.limit, CLIP) - held)
        if needed > self._budget(single):
            self.cache.free(table)
            return False
        self._hold(job, prompt)
        return True

    def _budget(self, single: int) -> int:
        """Tokens for which there is room beside a reserve for each job that holds memory, or *single* if that is more.
        """
        active = len(self.batch) + len(self.receiving) + len(self.ready)
        room = self.cache.free_tokens() + self.cache.evictable_tokens()
        return room - max(self.limits.num_reserved_decode_tokens * active, single)

    def _paged(self, tokens: int) -> int:
        return self.cache.blocks(tokens) * self.cache.block_tokens

    def _hold(self, job: Job, tokens: int) -> None:
        """Let *job* hold memory for *tokens* tokens."""
        self.cache.make_room(self._paged(tokens) - job.block_table.num_slots)
        self.cache.grow(job.block_table, tokens)
        job.state, job.num_computed_tokens = State.LOADING, tokens
        self._rows += 1

    def _receive(self) -> None:
        """Let those wait for a place that have received their keys and values, with their first token."""
        for job in [job for job in self.receiving if job in self._received]:
            self.receiving.remove(job)
            self._received.discard(job)
            if job.aborted:
                self._release(job)
                self.ended.append(job)
            else:
                job.num_tokens += 1
                self._queue.enter(job, self._prefilled)

    def _merge(self) -> None:
        """Let those that wait join where there are places; those that ended in the turn before have theirs still."""
        waiting, batch = self._queue.jobs, self.batch
        if (key := self._queue.order.key) and (self.limits.enable_priority_scheduling
                                               or hasattr(self.guard.policy, "order")):
            waiting.sort(key=key)
        places = max(self.limits.max_running_requests - len(batch), 0)
        self._joined, waiting[:places] = waiting[:places], []
        for job in self._joined:
            job.state = State.RUNNING
            self.cache.publish_computed(job.block_table, job.num_computed_tokens, job.request.prompt)
        for job in self._joined:
            if job.aborted or job.sampled >= min(job.output, max(job.limit, 1)):
                self._release(job, job.num_computed_tokens)
                self.ended.append(job)
        if joining := [job for job in self._joined if job.state is State.RUNNING]:
            batch.join(joining)
        batch.drop(self._ended)
        self._ended.clear()

    # What is known of the next schedules.

    @property
    def _ignores_queue(self) -> bool:
        return self._is_alone and len(self.batch) >= self.limits.max_running_requests

    def repeats_left(self) -> int:
        """How many more schedules will be just like the latest, if no call says anything."""
        unsorted = self.limits.enable_priority_scheduling and self.arriving
        if self.set_aside or self._met or self._received or unsorted:
            return 0
        return super().repeats_left()
