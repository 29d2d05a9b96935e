"""Longest cached prefix first among those that wait."""

from collections.abc import Iterator

from attrs import define, field

from ksim.kv.cache import Cache, common_tokens
from ksim.scheduling.job import Job
from ksim.scheduling.queues import ArrivalQueue

__all__ = ["LongestPrefixFirst"]

#: A job that finds no more tokens than this waits for one before it in the queue that begins with as many like its own.
_IN_BATCH = 32


@define
class LongestPrefixFirst:
    """Who finds most in the prefix cache comes first, then who came first: what is cached is used while it is there.

    Source: SGLang's ``--schedule-policy lpm`` (Zheng et al., 2024).  Good for:
    the hit rate where prefixes compete for room; who shares nothing may wait
    long.  With more than `most` jobs waiting, the order is first come, first
    served, as sorting is dear then.  In a cache where jobs of one step cannot
    share what they compute, one of those that begin alike goes ahead.

        scheduling_policy = "longest_prefix_first"
    """

    most: int = 128
    _cache: Cache | None = field(default=None, init=False)

    def attach(self, cache: Cache) -> None:
        self._cache = cache

    def queue(self) -> "PrefixQueue":
        assert self._cache is not None, "a policy is attached to a cache before it is asked for its queue"
        return PrefixQueue(self._cache, self.most)


class PrefixQueue(ArrivalQueue):
    """The order is that of the moment at which one begins to iterate."""

    def __init__(self, cache: Cache, most: int) -> None:
        super().__init__()
        self._cache = cache
        self._most = most

    def __iter__(self) -> Iterator[Job]:
        jobs = list(self._jobs)
        if len(jobs) == 1 or len(jobs) > self._most:
            return iter(jobs)
        hits = {job: self._hit(job) for job in jobs}
        later = self._begin_alike([job for job in jobs if hits[job] <= _IN_BATCH])
        return iter(sorted(jobs, key=lambda job: (job in later, -hits[job])))

    def _hit(self, job: Job) -> int:
        return self._cache.find_prefix(job.block_table, job.num_tokens).tokens if job.reads_cache else 0

    def _begin_alike(self, jobs: list[Job]) -> set[Job]:
        """Those of *jobs* that had better wait until one before them has been computed."""
        if not (self._cache.publishes_computed and self._cache.prefix_caching):
            return set()
        ahead, later = list[Job](), set[Job]()
        for job in jobs:
            if any(_common(job, other) >= _IN_BATCH for other in ahead):
                later.add(job)
            else:
                ahead.append(job)
        return later


def _common(job: Job, other: Job) -> int:
    return common_tokens(job.block_table, other.block_table, 0, min(job.num_tokens, other.num_tokens))
