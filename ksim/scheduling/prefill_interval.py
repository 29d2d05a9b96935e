"""Prompts join a batch only every so many steps, so that the steps between them decode fast."""

from collections.abc import Iterable, Sequence

from attrs import define

from ksim.scheduling.job import Job
from ksim.scheduling.schedule import ScheduledTokens


@define
class PrefillInterval:
    """vLLM's ``prefill_schedule_interval`` of 2 and more; with 1, no step is ever held.

    A `held` step carries no prefill: some job decodes, fewer than `interval`
    steps have been executed since one that carried prefill, and the last step
    that was free to admit left nobody in the queue but jobs that were passed over.
    """

    interval: int
    held: bool = False
    executed: int = 0
    latest: int | None = None  # the executed step that last carried prefill
    backlog: bool = False

    def begin(self, running: Sequence[Job]) -> None:
        """Decide whether the step about to be made is held."""
        soon = self.latest is not None and self.executed + 1 - self.latest < self.interval
        self.held = soon and not self.backlog and any(job.decoding for job in running)

    def end(self, entries: Sequence[ScheduledTokens], waiting: Iterable[Job], asked: bool) -> None:
        """Note the step that was made; *asked* says whether it came to admission."""
        if entries:
            self.executed += 1
            if any(entry.tokens > 1 if entry.admitted else not entry.job.decoding for entry in entries):
                self.latest = self.executed
        if asked and not self.held:
            self.backlog = any(not job.passed_over for job in waiting)
