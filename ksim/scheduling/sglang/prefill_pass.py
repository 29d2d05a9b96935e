"""One pass of SGLang over its queue: whom a batch of prompts has room for.

The rules are those of PrefillAdder and PrefillBudget (SGLang 0.5.23, srt/managers/schedule_policy.py and
srt/mem_cache/prefill_budget.py), with the new-token ratio that they go by (new_token_ratio_tracker.py).
"""

from attrs import define, field

from ksim.kv.cache.radix import RadixCache
from ksim.kv.cache.sglang import LockedNode
from ksim.scheduling.job import Job
from ksim.scheduling.sglang.running_batch import RunningBatch

__all__ = ["CLIP", "NewTokenRatio", "PrefillPass"]

#: Most output tokens of a request that admission counts (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION).
CLIP = 4096
#: The new-token ratio: at the start, its least share of that, and in how many decodes it falls so far (SGLANG_*_RATIO).
INITIAL_RATIO, LEAST_RATIO, DECAY_DECODES = 0.7, 0.14, 600
#: A limit on tokens where there is none.
UNLIMITED = float("inf")
#: Tokens that a retraction leaves free for each job that stays (SGLANG_RETRACT_DECODE_STEPS).
RETRACT_TOKENS = 20


@define
class NewTokenRatio:
    """The share of their remaining output that running jobs are expected to need."""

    start: float
    least: float
    step: float
    now: float

    @classmethod
    def of(cls, conservativeness: float) -> "NewTokenRatio":
        start = min(INITIAL_RATIO * conservativeness, 1.0)
        least = min(start * LEAST_RATIO, 1.0)
        return cls(start, least, (start - least) / DECAY_DECODES, start)

    def decay(self) -> None:
        self.now = max(self.now - self.step, self.least)

    def reset(self) -> None:
        self.now = self.start

    def retracted(self, sampled: int, jobs: int, most: int) -> None:
        """After a retraction, *jobs* stay, which have *sampled* so many of *most* tokens."""
        self.now = min(1.0, (sampled + RETRACT_TOKENS * jobs) / (most + 1))


@define(eq=False)
class PrefillPass:
    """One pass over the queue: what is left of its budgets, in tokens, and whom it admits.

    Memory is what is free and evictable, less what is `reserved`: in all, and for the prompts of this pass (`taken`).
    """

    batch: RunningBatch
    ratio: float
    input: int
    chunk: int | None  # None: prompts are not cut
    reserved: float
    taken: int
    jobs: list[tuple[Job, int, int]] = field(factory=list)  # with the tokens before and those to compute
    cut: Job | None = None  # a new one whose prompt does not fit
    _ends: list[tuple[float, int]] | None = None

    @property
    def cache(self) -> RadixCache:
        return self.batch.cache

    @property
    def _available(self) -> int:
        return self.cache.free_tokens() + self.cache.evictable_tokens()

    @property
    def memory(self) -> float:
        return self._available - self.reserved

    @property
    def at_once(self) -> int:
        """Memory for prompts."""
        return self._available - self.taken

    @property
    def spent(self) -> bool:
        """Whether tokens have run out, and not memory."""
        return self._has_memory and not self._has_tokens

    @property
    def _has_memory(self) -> bool:
        return self.memory > 0 and self.at_once > 0

    @property
    def _has_tokens(self) -> bool:
        return self.input > 0 and (self.chunk is None or self.chunk > 0)

    def pages(self, tokens: int) -> int:
        """*tokens*, rounded up to whole pages."""
        return self.cache.blocks(tokens) * self.cache.block_tokens

    def go_on(self, job: Job, most: int | None) -> bool:
        """Let *job*, whose prompt is cut, go on for *most* tokens at most; return whether it is still cut."""
        room = self._room()
        if room is None:
            return True
        if most is not None:
            room = min(room, most)
        rest = job.num_tokens - job.num_computed_tokens
        tokens = min(rest, room)
        self._admit(job, job.num_computed_tokens, tokens, min(job.limit, CLIP) if rest <= room else 0)
        return rest > room

    def _room(self) -> int | None:
        """Most tokens for the job whose prompt is cut; None lets it wait."""
        assert self.chunk is not None, "a prompt is cut only where there are chunks"
        room = min(self.chunk, int(self.memory))
        return room if room > 0 else self.chunk

    def _most(self, tokens: int, new: int, node: LockedNode) -> float | None:
        """Most of *tokens* that a job may compute, which begins with *node* and has *new* ones to come; None where
        memory is short."""
        page = self.cache.block_tokens
        locked = self.cache.locked(node) * page
        if not tokens + new + page < self.memory - locked:
            return None
        return UNLIMITED if self.chunk is None else self.chunk

    def _admit(self, job: Job, before: int, tokens: int, new: int) -> None:
        paged, page = self.pages(tokens), self.cache.block_tokens
        self.jobs.append((job, before, tokens))
        self.reserved += paged + page + new
        self.taken += paged + page
        self.input -= paged
        if self.chunk is not None:
            self.chunk -= paged

    def look_up(self, job: Job) -> tuple[int, LockedNode]:
        """The cached prefix of *job*, which is used now, and its last node."""
        found = self.cache.look_up(job.block_table, job.num_tokens - 1) if job.reads_cache else (
            0, self.cache.tree.root)
        job.cached, job.seen = found[0], job.num_tokens
        return found

    def add(self, job: Job, cut: bool) -> bool | None:
        """Admit *job* if it fits.

        Return whether the pass may go on, or None where memory is short.  *cut* says whether another prompt is cut.
        """
        hit, node = self.look_up(job)
        if job.request.ignore_eos and not self.cache.prefix_caching:
            return self._add_by_ends(job)
        tokens, page = job.num_tokens - hit, self.cache.block_tokens
        most = self._most(tokens, min(max(job.limit - job.sampled, 0), CLIP), node)
        if most is None:
            return None
        paged = self.pages(tokens)
        if self.chunk is None and self.jobs and paged >= self.input:
            return False
        new = min(job.limit, CLIP)
        if paged > most:
            end = (hit + int(most) // page * page) // page * page
            tokens, new = end - hit, 0
            if tokens <= 0 or cut:
                return False
            self.cut = job
        self.cache.lock(job.block_table, hit, node)
        self._admit(job, hit, tokens, new)
        return self._answer()

    def _answer(self) -> bool | None:
        if not self._has_memory:
            return None
        return self._has_tokens

    def _add_by_ends(self, job: Job) -> bool | None:
        """The same for a job without a cache that ignores the stop token: at the end of each job enough must be free.

        SGLang's `add_one_req_ignore_eos`.
        """
        tokens, page = job.num_tokens, self.cache.block_tokens
        paged = self.pages(tokens) + page
        if not self._holds(job, paged):
            return None
        self._note_end(job)
        if not self._outlasts(self.at_once - paged):
            return None
        new = min(job.limit, CLIP)
        if self.chunk is not None and tokens > self.chunk:
            if self.chunk <= 0:
                return False
            tokens, new, self.cut = self.chunk, 0, job
        self.cache.lock(job.block_table, 0, self.cache.tree.root)
        self._admit(job, 0, tokens, new)
        return self._answer()

    def _holds(self, job: Job, paged: int) -> bool:
        """Whether there is memory for *job*, which takes *paged* tokens at once."""
        return paged <= min(self.at_once, self.memory)

    def _outlasts(self, free: int) -> bool:
        """Whether so many *free* tokens suffice until the end of each job."""
        ends, freed = self._ends or [], 0
        for place, (left, held) in enumerate(ends):
            alive = len(ends) - place
            if free + freed - left * alive <= alive:
                return False
            freed += held
        return True

    def _note_end(self, job: Job) -> None:
        """Put the end of *job* among those of the others, which are in order of the tokens that they have left."""
        own = self.end_of(job, job.sampled)
        if self._ends is None:
            running = [self.end_of(other, self.batch.sampled(other)) for other in self.batch.jobs]
            known = [own, *running, *(self.end_of(other, other.sampled) for other, _, _ in self.jobs)]
            self._ends = sorted((end for end in known if end[0] > 0), key=lambda end: end[0])
        elif own[0] > 0:
            # SGLang's loop stops at the last place where none is later, and inserts before it.
            last = max(len(self._ends) - 1, 0)
            place = next((place for place, (left, _) in enumerate(self._ends) if own[0] <= left), last)
            self._ends.insert(place, own)

    def end_of(self, job: Job, sampled: int) -> tuple[float, int]:
        """The tokens that *job* is thought to have left, and those that it holds."""
        ratio = 1.0 if job.request.ignore_eos else self.ratio
        return job.limit * ratio - sampled, job.request.prompt + sampled
