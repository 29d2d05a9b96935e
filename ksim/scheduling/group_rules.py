"""What an engine's scheduler does besides, where layers keep different things: windows, chunks of attention, states.

Only engines with a HybridCache have these rules, so that other models do not pay for them.
"""

from collections.abc import Sequence

from attrs import define, field

from ksim.kv.cache import Group
from ksim.kv.cache.hybrid import NEVER, HybridCache, HybridTable
from ksim.scheduling.connector import ConnectorOutput
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job, Schedule
from ksim.scheduling.policies import ALL
from ksim.scheduling.scheduler import Rules, Scheduler

__all__ = ["GroupDecodeSet", "GroupRules", "grouping"]


@define(eq=False)
class GroupDecodeSet(DecodeSet):
    """A decode set whose jobs take a block in some of several groups, and give blocks back as windows move on.

    Jobs that will give none back take one in all groups at once, if these have blocks of one size; they are counted.
    `stirring` are those that will give blocks back, or enter some in the cache.
    """

    stirring: set[Job] = field(factory=set)
    _even: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        groups = self._hybrid.groups
        self.each = len(groups)
        self._even = len({group.block_tokens for group in groups}) == 1 and self._hybrid.state is None

    @property
    def _hybrid(self) -> HybridCache:
        assert isinstance(self.cache, HybridCache)
        return self.cache

    @property
    def smallest_block(self) -> int:
        return min(group.block_tokens for group in self._hybrid.groups)

    @property
    def findable(self) -> bool:
        return bool(self.stirring)

    def _plan(self, job: Job, first: int) -> None:
        table, computed = _table(job), self._computed(job, first)
        if self._hybrid.changes_before(table, min(job.request.prompt + job.limit, self.max_model_len) - self.ahead):
            self.stirring.add(job)
        else:
            self.stirring.discard(job)
            if self._even:
                self._count(job, first + table.room - computed)
                return
        super()._plan(job, first)

    def _afford(self, due: Sequence[Job], needs: int, step: int) -> bool:
        missing = self._hybrid.missing
        return needs + sum(missing(job.block_table, self._computed(job, step) + 1)
                           for job in due if job.in_decode_set) <= self.cache.pool.free

    def _renew(self, job: Job, step: int) -> None:
        table = _table(job)
        table.processed = self._computed(job, step) - table.in_flight - (self.ahead and step > job.start)
        super()._renew(job, step)

    def _settle(self, job: Job, step: int) -> None:
        table, computed = _table(job), job.num_computed_tokens
        back = max(0, min(self.returned, self._final(job)) - job.start + 1)
        self.stirring.discard(job)
        super()._settle(job, step)
        if self.ahead:
            table.in_flight += job.num_computed_tokens - computed - back
        self.cache.publish(table, job.num_computed_tokens - job.num_output_placeholders)


class GroupRules(Scheduler):
    """What groups of layers change in a scheduler's rules."""

    cache: HybridCache

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.decodes = GroupDecodeSet(self.cache, self.limits.async_scheduling, self.limits.max_model_len)

    def _begin(self) -> None:
        super()._begin()
        self.cache.begin_step()

    def _extend(self, job: Job, wish: int) -> bool:
        table, computed = _table(job), job.num_computed_tokens
        table.processed = computed - table.in_flight
        if self.cache.state is not None:
            most = min(wish, self._cap, self._budget, self.limits.max_model_len - 1 - computed)
            wish = self._split(self.cache.state, job, computed, min(job.backlog + job.drafts, most), wish)
        return super()._extend(job, wish)

    def _first_chunk(self, job: Job, computed: int, wish: int) -> int:
        tokens = super()._first_chunk(job, computed, wish)
        if self.cache.state is not None and tokens > 0:
            return self._split(self.cache.state, job, computed, tokens, wish) or -1
        return tokens

    def _split(self, state: Group, job: Job, start: int, tokens: int, wish: int) -> int:
        """How many of *tokens* tokens from *start* on *job* gets, so that a chunk of a prompt ends where its state is
        worth keeping; vLLM's `_mamba_block_aligned_split`.  A policy's *wish* for less than a block is granted."""
        prefill_end, size, end = max(job.request.prompt, job.num_tokens - 1), state.block_tokens, start + tokens
        self.cache.prefill_end = prefill_end if start < prefill_end else NEVER
        if start >= prefill_end:
            return tokens
        if end < prefill_end and (end // size * size > start or size <= min(self._longest_chunk, wish)):
            end = end // size * size
        junction, last = _table(job).junction, (job.num_tokens - 1) // size * size
        if end >= prefill_end and state.keeps_amid(start, end, (prefill_end - 1) // size * size, self.cache.unit):
            last = 0
        stops = (-(-start // size) * size, last,
                 start + (junction - start) // size * size if start < junction < end else 0)
        return max(0, min((stop for stop in stops if start < stop < end), default=end) - start)

    @property
    def _longest_chunk(self) -> int:
        limits = self.limits
        return min(limits.max_num_batched_tokens, limits.long_prefill_token_threshold or ALL)

    # Tokens in flight: what they read is not given back.

    def _conclude(self) -> Schedule:
        schedule = super()._conclude()
        if self.limits.depth > 1:
            for entry in schedule.entries:
                _table(entry.job).in_flight += entry.tokens
        return schedule

    def update(self, schedule: Schedule, index: int, output: ConnectorOutput | None = None) -> list[Job]:
        if self.limits.depth > 1:
            for entry in schedule.entries:
                _table(entry.job).in_flight -= entry.tokens
            if schedule.epoch != self.decodes.epoch:  # the set was dissolved with this schedule in flight
                for job in schedule.decodes:
                    _table(job).in_flight -= 1
        return super().update(schedule, index, output)


def _table(job: Job) -> HybridTable:
    table = job.block_table
    assert isinstance(table, HybridTable)
    return table


def grouping() -> Sequence[Rules]:
    """The rules of an engine with a HybridCache."""
    return (Rules(4, GroupRules),)
