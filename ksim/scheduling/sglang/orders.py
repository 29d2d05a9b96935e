"""SGLang's queue and its orders: who is looked at first when a batch of prompts is made.

The rules are those of SchedulePolicy (SGLang 0.5.23, srt/managers/schedule_policy.py).  The queue is put in order in
place, just before it is looked at.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from attrs import define, field, frozen

from ksim.kv.cache import BlockTable, RadixNode, RadixTree
from ksim.kv.cache.evictions.by_history import lru
from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.job import Job, State
from ksim.scheduling.queues import PolicyGuard
from ksim.scheduling.sglang.limits import SglangLimits

__all__ = ["QueueOrder", "SglangQueue", "order_of"]

#: Where more jobs wait, `lpm` and `hrrn` are first come, first served; and of so many, prefixes are kept from eviction.
MOST_MATCHED = 128
#: Passes over the queue from one use of the waiting prefixes to the next.
REFRESH = 32
#: A job that finds no more tokens than this waits for one before it in the queue that begins with as many like its own.
IN_BATCH = 32

Key = Callable[[Job], Any]


@define(eq=False)
class QueueOrder:
    """First come, first served; by a `key`, if there is one."""

    cache: RadixCache
    key: Key | None = None
    _passes: int = field(default=0, init=False)

    def arrange(self, waiting: list[Job], prefilled: int) -> None:
        """Put the *waiting* jobs in order; so many tokens were *prefilled* before."""
        if self.key is not None:
            waiting.sort(key=self.key)
        self._refresh(waiting)

    def _refresh(self, waiting: Sequence[Job]) -> None:
        """Use the prefixes of those that wait, the first of them last, in every 32nd pass: so LRU keeps them."""
        if not waiting or self.cache.eviction is not lru or not self.cache.prefix_caching:
            return
        if self._passes % REFRESH == 0:
            for job in reversed(waiting[:MOST_MATCHED]):
                self.cache.look_up(job.block_table, job.num_tokens)
        self._passes += 1

    def chunk_limit(self, job: Job, waiting: Sequence[Job], budget: int, page: int) -> int | None:
        """Most tokens for *job*, whose prompt is cut, of a *budget*; None is no limit."""
        return None


@define(eq=False)
class RandomOrder(QueueOrder):
    """Shuffled in every pass."""

    random: Random = field(kw_only=True)

    def arrange(self, waiting: list[Job], prefilled: int) -> None:
        self.random.shuffle(waiting)
        self._refresh(waiting)


@frozen
class Matches:
    """What the waiting jobs find: tokens of each, and the nodes where they end; some had better wait for others."""

    tokens: dict[Job, int]
    nodes: list[Any]
    later: set[Job]


@define(eq=False)
class CachedOrder(QueueOrder):
    """An order by what is in the cache; every pass uses the prefixes of all that wait."""

    most: int = MOST_MATCHED

    def arrange(self, waiting: list[Job], prefilled: int) -> None:
        if len(waiting) > self.most:
            self._refresh(waiting)
        else:
            self._sort(waiting, self._match(waiting), prefilled)

    def _match(self, waiting: Sequence[Job]) -> Matches:
        ahead, matches = RadixTree(RadixNode(BlockTable(), 0, 0, None)), Matches({}, [], set())
        for job in waiting:
            tokens, node = self.cache.look_up(job.block_table, job.num_tokens)
            job.cached = tokens
            matches.tokens[job] = min(tokens, job.num_tokens - 1)
            matches.nodes.append(node)
            if tokens <= IN_BATCH:
                end = job.num_tokens - self.cache.ahead
                if ahead.match(job.block_table, end)[0] + self.cache.ahead >= IN_BATCH:
                    matches.later.add(job)
                else:
                    _insert(ahead, job.block_table, end)
        return matches

    def _sort(self, waiting: list[Job], found: Matches, prefilled: int) -> None:
        """Longest cached prefix first."""
        waiting.sort(key=lambda job: (job in found.later, -found.tokens[job] if job not in found.later else 0))


class DepthFirst(CachedOrder):
    """By a walk of the tree: first below the nodes below which most wait."""

    def _sort(self, waiting: list[Job], found: Matches, prefilled: int) -> None:
        waiting[:] = [waiting[place] for place in self.cache.depth_first(found.nodes)]


class HighestResponseRatio(CachedOrder):
    """By the tokens that were prefilled since a job came, for each token that it has to compute: most first."""

    def _sort(self, waiting: list[Job], found: Matches, prefilled: int) -> None:
        waiting.sort(key=lambda job: _by_ratio(job, found, prefilled))


def _by_ratio(job: Job, found: Matches, prefilled: int) -> tuple[float, int]:
    if job in found.later:
        return float("inf"), job.number
    uncached = job.request.prompt - found.tokens[job]
    if uncached <= 0:
        return -float("inf"), job.number
    return -(max(0, prefilled - job.prefilled_before) / uncached), job.number


class ShortestPrefillFirst(CachedOrder):
    """By the tokens to compute, fewest first; a prompt that is cut leaves room for shorter ones."""

    def _sort(self, waiting: list[Job], found: Matches, prefilled: int) -> None:
        waiting.sort(key=lambda job: (job in found.later, _work(job), job.entered))

    def chunk_limit(self, job: Job, waiting: Sequence[Job], budget: int, page: int) -> int | None:
        if budget < 2 * page:
            return None
        remaining, set_aside = job.num_tokens - job.num_computed_tokens, 0
        for other in waiting:
            work = _work(other)
            charge = -(-work // page) * page
            if work >= remaining or set_aside + charge > budget - page:
                break
            set_aside += charge
        return (budget - set_aside) // page * page if set_aside else None


def _work(job: Job) -> int:
    return max(1, job.num_tokens - min(job.cached, job.num_tokens - 1))


def order_of(name: str, guard: PolicyGuard, cache: RadixCache, limits: SglangLimits) -> QueueOrder:
    """The order called *name*, unless a policy of the user's own has one."""
    sign, urgent = limits.sign, limits.enable_priority_scheduling
    if hasattr(guard.policy, "order"):
        return QueueOrder(cache, guard.order)
    if name in CACHED and cache.prefix_caching:
        kind, most = CACHED[name]
        return kind(cache, most=most)
    if name == "lof":
        return QueueOrder(cache, (lambda job: (sign * job.request.priority, -job.limit)) if urgent else (
            lambda job: -job.limit))
    if name == "random":
        return RandomOrder(cache, random=Random(limits.random_seed))
    return QueueOrder(cache, (lambda job: (sign * job.request.priority, job.entered)) if urgent else None)


#: The orders that look at the cache, and for how many waiting jobs at most they do.
CACHED: dict[str, tuple[type[CachedOrder], int]] = {
    "lpm": (CachedOrder, MOST_MATCHED), "dfs-weight": (DepthFirst, 1 << 60),
    "hrrn": (HighestResponseRatio, MOST_MATCHED), "shortest-prefill-first": (ShortestPrefillFirst, 1 << 60)}


def _insert(tree: RadixTree[RadixNode], table: BlockTable, end: int) -> None:
    """Put the first *end* tokens of *table* into *tree*."""
    position, node = tree.match(table, end)
    if position < node.end:
        node = tree.split(node, RadixNode(node.source, node.start, position, node.parent))
    if position < end:
        tree.append(RadixNode(table, position, end, node))


@define(eq=False)
class SglangQueue:
    """The `jobs` that wait, as `order` last put them; who is `rejected` ends without a result."""

    limits: SglangLimits
    order: QueueOrder
    jobs: list[Job] = field(factory=list)
    rejected: list[Job] = field(factory=list)
    _entered: int = field(default=0, init=False)

    def add(self, job: Job, prefilled: int) -> None:
        """Put *job* at the end, or reject it or one that is less urgent where the queue is full."""
        limit = self.limits.max_queued_requests
        if limit is not None and len(self.jobs) + 1 > limit and self._less_urgent(job) is job:
            return
        self.enter(job, prefilled)

    def enter(self, job: Job, prefilled: int) -> None:
        """Put *job* at the end, however many wait."""
        self.number(job, prefilled)
        self.jobs.append(job)

    def number(self, job: Job, prefilled: int) -> None:
        """Note that *job* has come just now."""
        self._entered += 1
        job.entered, job.prefilled_before = self._entered, prefilled

    def _less_urgent(self, job: Job) -> Job:
        """Reject *job*, or with priorities the least urgent of those that wait if it is less urgent; return whom."""
        sign, rejected = self.limits.sign, job
        if self.limits.enable_priority_scheduling and self.jobs:
            least = max(self.jobs, key=lambda other: (sign * other.request.priority, other.entered))
            if sign * job.request.priority < sign * least.request.priority:
                self.jobs.remove(least)
                rejected = least
        self.reject(rejected)
        return rejected

    def reject(self, job: Job, why: str = "the request queue is full") -> None:
        job.state, job.why = State.DONE, why
        self.rejected.append(job)

    def leave(self, jobs: Iterable[Job]) -> None:
        """Take *jobs*, which are admitted, from the queue, if they wait there."""
        gone = set(jobs)
        self.jobs = [job for job in self.jobs if job not in gone]

    def arrange(self, prefilled: int) -> None:
        """Put those that wait in order; so many tokens were *prefilled* before."""
        self.order.arrange(self.jobs, prefilled)

    def chunk_limit(self, job: Job, budget: int, page: int) -> int | None:
        """Most tokens for *job*, whose prompt is cut, of a *budget*; None is no limit."""
        return self.order.chunk_limit(job, self.jobs, budget, page)
