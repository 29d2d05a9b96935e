"""A KV connector and its workers for cases: what is external, and when loads and sends end."""

from collections import Counter
from collections.abc import Iterator

from attrs import define, field, frozen

from ksim.scheduling.connector import ConnectorOutput, Load, NoCopies
from ksim.scheduling.job import Job, Schedule


@frozen
class PlannedTransfer:
    """The KV that moves for a request: a store has the first `stored` tokens of its prompt; a load takes some `turns`.

    The first `unknown` questions are answered "not known yet".  The block at the place `bad` of the first load cannot
    be loaded.  Its own blocks are held for `sent` turns after its end; -1 is not at all.
    """

    stored: int = 0
    turns: int = 0
    asynchronous: bool = True
    unknown: int = 0
    bad: int = -1
    sent: int = -1


@frozen
class TransferOutcome:
    """Due at turn `due`: a load of *job* has ended, its block at the place `bad` has failed, or its blocks were
    sent."""

    due: int
    job: Job
    received: bool = False
    sent: bool = False
    bad: int = -1


@define(eq=False)
class StoreConnector(NoCopies):
    """Answers for each job what its transfer says.  The engine loads (`consumes`), sends (`produces`), or both."""

    consumes: bool = True
    produces: bool = True
    recomputes: bool = True
    transfers: dict[Job, PlannedTransfer] = field(factory=dict)
    block_tokens: int = 1
    _asked: Counter[Job] = field(factory=Counter)
    _pending: list[TransferOutcome] = field(factory=list)
    _failed: set[Job] = field(factory=set)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        transfer = self.transfers.get(job)
        if transfer is None or not self.consumes:
            return 0, False
        self._asked[job] += 1
        if self._asked[job] <= transfer.unknown:
            return None, False
        most = job.request.prompt - (not transfer.asynchronous)
        return max(min(transfer.stored, most) - computed, 0), transfer.asynchronous

    def begin(self, load: Load) -> None:
        """Do nothing: loads are in the schedule."""

    def sends_early(self, job: Job) -> bool:
        return False

    def holds(self, job: Job, complete: bool) -> bool:
        return complete and self.produces and job in self.transfers and self.transfers[job].sent >= 0

    def work(self, schedule: Schedule, turn: int) -> ConnectorOutput:
        """See what begins with the *schedule* of a *turn*, and report what is due."""
        for load in schedule.loads:
            self._pending += self._reports(load, turn)
        self._pending += [TransferOutcome(turn + self.transfers[job].sent, job, sent=True) for job in schedule.sends]
        due = [report for report in self._pending if report.due <= turn]
        self._pending = [report for report in self._pending if report.due > turn]
        return ConnectorOutput([report.job for report in due if report.received],
                               [report.job for report in due if report.sent],
                               {report.job: (report.bad,) for report in due if report.bad >= 0})

    def _reports(self, load: Load, turn: int) -> Iterator[TransferOutcome]:
        transfer, end = self.transfers[load.job], turn + self.transfers[load.job].turns * load.asynchronous
        bad = load.start // self.block_tokens + transfer.bad
        if transfer.bad >= 0 and load.job not in self._failed and bad * self.block_tokens < load.start + load.tokens:
            self._failed.add(load.job)
            yield TransferOutcome(end, load.job, bad=bad)
        if load.asynchronous:
            yield TransferOutcome(end, load.job, received=True)
