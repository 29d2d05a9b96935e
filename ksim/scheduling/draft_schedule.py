"""A schedule whose decodes verify drafted tokens."""

from collections import Counter

from attrs import define

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.scheduling.schedule import Schedule

__all__ = ["DraftSchedule"]


@define(eq=False)
class DraftSchedule(Schedule):
    """Schedule of an engine whose decodes have up to `width` tokens: one known, the others drafted."""

    width: int = 1

    def batch(self) -> Batch:
        """What kernels see of it, and whose prompts are in it.

        Decode kernels take sequences of one width, that of most: others go with the prompts, as in vLLM.
        """
        if self.width == 1:
            return super().batch()
        entries = self.entries
        counts = Counter(entry.tokens for entry in entries)
        width = self.width if counts[self.width] >= max(counts[1], 1) else 1
        wide = [entry.start - self.number for entry in entries if entry.tokens == width]
        return Batch(
            contexts=Contexts(Offsets(wide), self.number),
            chunks=tuple((entry.tokens, entry.start) for entry in entries if entry.tokens != width),
            samples=sum(entry.samples for entry in entries), tokens=sum(entry.tokens for entry in entries),
            prompts=tuple((entry.job.request.id, entry.tokens - entry.drafts, entry.start)
                          for entry in entries if entry.prompt),
            images=self.images, width=width, drafts=sum(entry.drafts for entry in entries),
            accepted=tuple(entry.accepted for entry in entries if entry.drafts),
            prompt_logprobs=self.prompt_logprobs())
