"""Prompts first, but who decodes looks for new ones only every so many steps."""

from collections.abc import Iterator, Sequence
from itertools import chain

from attrs import define, field
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish, granted

__all__ = ["PolledPrefill"]


@define(eq=False)
class PolledPrefill:
    """Steps of prompts alone or of decodes alone; of these, `interval` go by between two looks at what has arrived.

    Source: SGLang's --scheduler-recv-interval (srt/managers/scheduler_recv_skipper.py); a step of prompts counts for
    many, and is followed by a look.  Good for: decodes of many small steps, which the looks would hold up, and prompts
    that come in groups; each waits for up to `interval` decodes.

        scheduling_policy = {name = "polled_prefill", interval = 30}
    """

    interval: int = field(default=30, validator=gt(0))
    _count: int = field(default=0, init=False)
    _known: int = field(default=-1, init=False)  # the latest that was seen; who came later is not known yet

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        self._count += 1
        if self._count >= self.interval or not running:
            self._count = 0
            self._known = max([self._known, *(job.number for job in waiting)])
        prompts, idle = [job for job in running if job.backlog > 1], True
        for job in chain(prompts, waiting):
            if job.number > self._known:
                break
            before = job.step
            yield job, ALL
            idle = idle and not granted(job, before)
        if idle:
            yield from ((job, ALL) for job in running if job not in prompts)
        else:
            self._count = self.interval
