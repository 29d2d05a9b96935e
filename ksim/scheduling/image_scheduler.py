"""The schedules of an engine whose model sees: images are encoded before the first step that has tokens of theirs.

The rules are those of vLLM's `Scheduler._try_schedule_encoder_inputs` and `EncoderCacheManager`, which keeps the
encoder's outputs (0.33).
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.flow.request import PlacedImage, Request
from ksim.kv.cache import PrefixHit
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.job import EncoderLimits, Job, Schedule, State
from ksim.scheduling.scheduler import Rules

__all__ = ["EncoderCache", "Encoding", "ImageScheduler", "encoding"]


@define(eq=False)
class EncoderCache:
    """Room for `capacity` embeddings.  Images of equal names share theirs.

    A job uses an image's embeddings until its tokens are computed.  What no job uses stays, and goes when room is
    needed: first what has been unused for longest.
    """

    capacity: int
    free: int = field(init=False)
    _users: dict[Hashable, set[Job]] = field(factory=dict, init=False)
    _unused: OrderedDict[Hashable, int] = field(factory=OrderedDict, init=False)
    reclaimable: int = field(init=False)  # free or unused
    _used: dict[Job, dict[int, Hashable]] = field(factory=dict, init=False)  # by the image's place in the prompt

    def __attrs_post_init__(self) -> None:
        self.free = self.reclaimable = self.capacity

    def __contains__(self, name: Hashable) -> bool:
        return name in self._users

    def use(self, job: Job, image: PlacedImage) -> bool:
        """Let *job* use the embeddings of its *image*, if they are there; return whether they are."""
        users = self._users.get(image.name)
        if users is None:
            return False
        if not users:
            self.reclaimable -= self._unused.pop(image.name)
        self._note(job, image, users)
        return True

    def make_room(self, embeds: int) -> bool:
        """Evict what is unused until so many embeddings fit; return False, with nothing evicted, where they cannot."""
        if embeds > self.reclaimable:
            return False
        while embeds > self.free:
            name, size = self._unused.popitem(last=False)
            del self._users[name]
            self.free += size
        return True

    def add(self, job: Job, image: PlacedImage) -> None:
        """Take room for the embeddings of an *image* of *job*, which is there."""
        assert self.free >= image.embeds, "there was room for the embeddings"
        self._note(job, image, self._users.setdefault(image.name, set()))
        self.free -= image.embeds
        self.reclaimable -= image.embeds

    def release(self, job: Job, computed: int | None = None) -> None:
        """Let *job* use no more embeddings, or none of those whose tokens are among the first *computed* ones."""
        used = self._used.get(job)
        if used is None:
            return
        for image in job.images:
            if image.start in used and (computed is None or image.end <= computed):
                del used[image.start]
                if image.name not in used.values():  # the same image may come again in the prompt
                    self._leave(job, image)
        if not used:
            del self._used[job]

    def _note(self, job: Job, image: PlacedImage, users: set[Job]) -> None:
        users.add(job)
        self._used.setdefault(job, {})[image.start] = image.name

    def _leave(self, job: Job, image: PlacedImage) -> None:
        users = self._users.get(image.name)
        if users:
            users.discard(job)
            if not users:
                self._unused[image.name] = image.embeds
                self.reclaimable += image.embeds


@define(eq=False)
class Encoding:
    """What is encoded: the `budget` left of the schedule being made, and the images `scheduled` with it, by job."""

    limits: EncoderLimits
    shift: int = 0
    cache: EncoderCache = field(init=False)
    budget: int = field(default=0, init=False)
    scheduled: dict[Job, list[PlacedImage]] = field(factory=dict, init=False)
    _job: Job | None = field(default=None, init=False)
    _planned: list[PlacedImage] = field(factory=list, init=False)
    _again: list[PlacedImage] = field(factory=list, init=False)
    _left: int = field(default=0, init=False)
    late: dict[Job, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.cache = EncoderCache(self.limits.cache)

    def begin(self) -> None:
        """Begin a schedule."""
        self.budget = self.limits.budget
        self.scheduled.clear()

    def plan(self, job: Job, computed: int, tokens: int) -> int:
        """How many of the next *tokens* tokens of *job*, with so many *computed*, can be scheduled: those before an
        image that cannot be encoded now."""
        self._job, self._planned, self._again, self._left = job, [], [], self.budget
        end, names = computed + tokens + self.shift, dict[object, None]()
        for image in job.images:
            if image.end <= computed:
                continue
            if image.start >= end:
                break
            if not self.limits.chunked and computed <= image.start and computed + tokens < image.end:
                return max(0, image.start - computed - self.shift)
            if image.name in names:
                self._again.append(image)
            elif not self.cache.use(job, image):
                embeds = sum(planned.embeds for planned in self._planned) + image.embeds
                if image.embeds > self._left or not self.cache.make_room(embeds):
                    return min(tokens, max(0, image.start - computed))
                if image.seen(computed, end):
                    self._left -= image.embeds
                    self._planned.append(image)
                    names[image.name] = None
        return tokens

    def commit(self, job: Job) -> None:
        """Encode what was planned for *job*, which is scheduled; nothing, if the last plan was for another."""
        if job is not self._job:
            return
        if self._planned:
            self.budget = self._left
            self.scheduled[job] = self._planned
        for image in self._planned:
            self.cache.add(job, image)
        for image in self._again:
            self.cache.use(job, image)
        self._job = None

    def computed(self, job: Job, number: int, ahead: bool) -> None:
        """Release what *job* no longer needs: schedule *number*, which had tokens of it, is back.

        Tokens count as computed without those that may be due.  So with a schedule made *ahead*, an image at the end of
        the prompt is released one schedule later.  A job in the decode set has no entry in that one.
        """
        tokens = job.num_computed_tokens - job.num_output_placeholders
        self.cache.release(job, tokens)
        if job.in_decode_set and ahead and job.sent == number:
            self.late[job] = number

    def release_late(self, number: int) -> None:
        """Release what jobs of the decode set need no more, now that schedule *number* is back."""
        for job, since in [*self.late.items()]:
            if since < number:
                del self.late[job]
                self.cache.release(job, job.request.prompt)

    def drop(self, job: Job) -> None:
        """Forget *job*, which is preempted, and what this schedule encodes for it."""
        self.late.pop(job, None)
        self.budget += sum(image.embeds for image in self.scheduled.pop(job, ()))
        self.cache.release(job)

    def refusal(self, request: Request) -> str:
        """Why no engine with these limits can serve the images of *request*; "" if it can."""
        if len(request.images) > self.limits.images:
            return (f"at most {self.limits.images} image(s) may be provided in one prompt, and it has"
                    f" {len(request.images)}")
        for image in request.images:
            size = f"its image of {image.width} x {image.height} pixels"
            if not isinstance(image, PlacedImage):
                return f"{size} is refused by the model's processor: it is too narrow"
            if image.embeds > self.limits.cache:
                return (f"{size} has {image.embeds} embeddings, which exceeds the encoder cache size of"
                        f" {self.limits.cache}; resize it, or raise max_num_batched_tokens")
        return ""


@define(eq=False, slots=False)
class ImageScheduler(DraftScheduler):
    """The scheduler of an engine whose model sees; `encoding` is what its rules for images remember."""

    encoding: Encoding = field(kw_only=True)
    encodes: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.encoding.shift = int(self.speculation is not None and self.speculation.drops_block)

    @property
    def releases_soon(self) -> bool:
        return bool(self.encoding.late)

    def images_refusal(self, request: Request) -> str:
        return self.encoding.refusal(request)

    def _begin(self) -> None:
        super()._begin()
        self.encoding.begin()
        self.encoding.release_late(self.steps - self.limits.depth)

    def _conclude(self) -> Schedule:
        schedule = super()._conclude()
        schedule.images = tuple(image.patches for images in self.encoding.scheduled.values() for image in images)
        return schedule

    def _extend(self, job: Job, wish: int) -> bool:
        if not job.sees_more(job.num_computed_tokens):
            return super()._extend(job, wish)
        tokens = self._next_chunk(job, wish)
        if tokens <= 0 or not (tokens := self.encoding.plan(job, job.num_computed_tokens, tokens)):
            return True
        kept = super()._extend(job, tokens)
        self._commit(job)
        return kept

    def _preempt(self) -> Job | None:
        victim = super()._preempt()
        if victim is not None:
            self.encoding.drop(victim)
        return victim

    def _admit(self, job: Job, wish: int) -> bool:
        goes_on = super()._admit(job, wish)
        if job.images:
            self._commit(job)
            if job.state is State.WAITING and job.waits_for_encoder:  # the next one may still be let in
                return self._pass_over_unencoded(job)
        return goes_on

    def _pass_over_unencoded(self, job: Job) -> bool:
        job.waits_for_encoder = False
        return self._pass_over(job)

    def _first_chunk(self, job: Job, computed: int, wish: int) -> int:
        tokens = super()._first_chunk(job, computed, wish)
        if tokens <= 0 or not job.sees_more(computed):
            return tokens
        tokens = self.encoding.plan(job, computed, tokens)
        job.waits_for_encoder = not tokens
        return tokens or -1

    def _has_room(self, job: Job, hit: PrefixHit, tokens: int) -> bool:
        fits = super()._has_room(job, hit, tokens)
        if not fits and job.images:
            self.encoding.cache.release(job)
        return fits

    def _commit(self, job: Job) -> None:
        """Encode the images of *job* that were planned, if it is in this schedule."""
        if job.step == self.steps and job.state is State.RUNNING:
            self.encoding.commit(job)

    # What batches bring.

    def _deliver_entries(self, schedule: Schedule, index: int) -> list[Job]:
        self.changed |= bool(self.encoding.late)  # what is released may let a waiting job in
        self.encoding.release_late(schedule.number)
        for entry in schedule.entries:
            job = entry.job
            if job.images and job.state is not State.DONE:
                self.encoding.computed(job, schedule.number, self.limits.async_scheduling)
                if entry.samples and job.sampled + 1 + entry.accepted >= job.output:
                    self.encoding.cache.release(job)  # before those behind it in the batch
        return super()._deliver_entries(schedule, index)

    def _finish(self, job: Job) -> None:
        super()._finish(job)
        self.encoding.cache.release(job)

    def abort(self, job: Job) -> None:
        super().abort(job)
        self.encoding.cache.release(job)


def encoding(limits: EncoderLimits) -> Sequence[Rules]:
    """The rules of an engine that encodes images within *limits*."""
    return Rules(0, DraftScheduler), Rules(2, ImageScheduler, {"encoding": Encoding(limits)})
