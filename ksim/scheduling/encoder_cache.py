"""The outputs of a vision encoder that are kept for requests; vLLM's `EncoderCacheManager` (0.33)."""

from collections import OrderedDict
from collections.abc import Hashable

from attrs import define, field

from ksim.flow.images import PlacedImage
from ksim.scheduling.job import Job

__all__ = ["EncoderCache"]


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
