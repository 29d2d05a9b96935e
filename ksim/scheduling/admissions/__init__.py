"""Admissions: may a waiting job start now, beyond what the scheduler itself demands?

The scheduler asks when a job has a sequence slot, tokens and blocks to begin with.  To add
one, add a file with a class that has this member, or a function like it:

    admits(job, running, cache) -> bool
                                may `job` start beside `running`, which are in order of admission?

A refusal ends admission for the step, and the job is asked about again in the
next; running jobs go on.  One that refuses while nothing runs would wait for
ever, and ends the run with an error.  The counts of all jobs are those before
the step, and neither they nor the cache may be changed.

One from elsewhere is named ``package.module:Class``; nothing need be inherited.
"""

from collections.abc import Sequence
from typing import Protocol

from ksim.kv.cache import Cache
from ksim.scheduling.job import Job


class Admission(Protocol):
    def admits(self, job: Job, running: Sequence[Job], cache: Cache) -> bool: ...
