"""Static batches: nobody is admitted until the whole batch before has ended."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from attrs import define, field
from attrs.validators import gt

from ksim.scheduling.job import Job
from ksim.scheduling.policies import ALL, Waiting, Wish, granted

__all__ = ["RequestLevel"]


@define(eq=False)
class RequestLevel:
    """A batch is filled and its prompts computed, then all of it decodes until the last has ended.

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
