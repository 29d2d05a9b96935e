"""The replay of recorded cases of SGLang's disaggregated pairs: either side, with the network played by turns."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from ksim.scheduling.job import Job, Load, Schedule
from ksim.scheduling.policies.orders import Fcfs
from ksim.scheduling.sglang.split import DecodeSide, PrefillSide
from ksim.validation.sglang_cases import Row, SglangCase, SglangReplay

__all__ = ["replay_of"]


def replay_of(case: SglangCase, repeats: bool = True) -> SglangReplay:
    """The replay of *case*, of whichever kind of engine."""
    kinds = {"prefill": PrefillReplay, "decode": DecodeReplay}
    return kinds.get(case.settings.disaggregation_mode, SglangReplay)(case, repeats)


@define(eq=False)
class SideReplay(SglangReplay):
    """A side whose other side answers so many turns after a request has come, and takes so many turns for a transfer.
    """

    side: Any = field(init=False)
    _step: int = field(default=0, init=False)
    _answers: dict[Job, int] = field(factory=dict, init=False)  # at which turn both sides have met
    _sent: dict[Job, int] = field(factory=dict, init=False)  # at which turn something was last sent

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._answers = {job: request.arrival_step + request.bootstrap_steps
                         for job, request in zip(self._jobs, self.case.requests, strict=True) if not job.aborted}

    def _turn(self, row: Row, step: int) -> None:
        self._step = step
        for job, answer in self._answers.items():
            if answer <= step and job in self._asking():
                self.side.bootstrapped(job)
        super()._turn(row, step)

    def _asking(self) -> Sequence[Job]:
        """Who waits for an answer."""
        raise NotImplementedError

    def _arrival(self, job: Job) -> int:
        """At which turn a transfer ends that has begun last."""
        return self._sent[job] + self.case.requests[self._places[job]].transfer_steps

    def _due(self, step: int) -> list[int]:
        ends = [*self._answers.values(), *(self._arrival(job) for job in self._sent)]
        return [*super()._due(step), *(end for end in ends if end >= step)]

    def _note_beside(self, jobs: Sequence[Job], row: Row, step: int) -> None:
        """Note who has ended beside a batch."""
        self._note_finished(sorted([*jobs, *self.side.ended], key=lambda job: self._places[job]), row, step)
        self.side.ended.clear()


@define(eq=False)
class PrefillReplay(SideReplay):
    """The side that prefills."""

    side: PrefillSide = field(init=False)
    _ends: dict[Job, int] = field(factory=dict, init=False)  # of what was sent, in tokens

    def _make_scheduler(self) -> PrefillSide:
        self.side = PrefillSide(self.case.settings, Fcfs(), self._cache, send=self._send)
        return self.side

    def _send(self, job: Job, tokens: int) -> None:
        """Send the first *tokens* tokens of *job*: whole pages, but for the last."""
        last = tokens == job.request.prompt
        end = tokens if last else tokens // self.case.settings.page_size * self.case.settings.page_size
        if last or end > self._ends.get(job, 0):
            self._ends[job], self._sent[job] = end, self._step

    def _asking(self) -> Sequence[Job]:
        return self.side.bootstrapping

    def _queues(self) -> Row:
        return super()._queues() | {"wait": [self._places[job] for job in self.side.ready],
                                    "boot": [self._places[job] for job in self.side.bootstrapping],
                                    "inflight": [self._places[job] for job in self.side.inflight]}

    def _end_turn(self, row: Row, step: int) -> None:
        """End the transfers that are over, or whose requests were aborted."""
        over = [job for job in self.side.inflight if job.aborted or self._arrival(job) <= step]
        for job in over:
            self.side.transferred(job)
        self._note_beside(over, row, step)

    def _note_end(self, job: Job, step: int, why: str) -> None:
        super()._note_end(job, step, "abort" if job.aborted else why)
        if self.outcomes[self._places[job]]["why"] == "stop":  # which a side that prefills does not look for
            self.outcomes[self._places[job]]["why"] = "length"


@define(eq=False)
class DecodeReplay(SideReplay):
    """The side that decodes."""

    side: DecodeSide = field(init=False)

    def _make_scheduler(self) -> DecodeSide:
        self.side = DecodeSide(self.case.settings, Fcfs(), self._cache, begin=self._begin)
        return self.side

    def _begin(self, load: Load) -> None:
        self._sent[load.job] = self._step
        self._note_arrivals()

    def _note_arrivals(self) -> None:
        for job in self.side.receiving:
            if self._arrival(job) <= self._step:
                self.side.transferred(job)

    def _asking(self) -> Sequence[Job]:
        return self.side.arriving

    def _turn(self, row: Row, step: int) -> None:
        self._step = step
        self._note_arrivals()
        super()._turn(row, step)

    def _queues(self) -> Row:
        side = self.side
        queues = {"wait": side.ready, "prealloc": side.arriving, "retracted": side.set_aside,
                  "transfer": side.receiving}
        return super()._queues() | {key: [self._places[job] for job in jobs] for key, jobs in queues.items()}

    def _note_batch(self, row: Row, schedule: Schedule, step: int) -> None:
        super()._note_batch(row, schedule, step)
        for job in schedule.admitted:
            self._found.setdefault(job, job.cached)

    def _end_turn(self, row: Row, step: int) -> None:
        self._note_beside((), row, step)
