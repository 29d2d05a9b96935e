"""What a vision encoder computes beside a step."""

from collections.abc import Sequence

from attrs import frozen

from ksim.flow.batch import Batch, Contexts
from ksim.flow.images import Patches

__all__ = ["EncoderBatch", "encoder_batch"]


@frozen
class EncoderBatch(Batch):
    """All patches of some images in one forward pass; its rows of logits are the tokens that they become."""

    @property
    def logits(self) -> int:
        return sum(image.embeds for image in self.images)


def encoder_batch(images: Sequence[Patches]) -> EncoderBatch:
    """The batch of *images*, of which there is one at least."""
    tokens = sum(image.tokens for image in images)
    return EncoderBatch(contexts=Contexts(), chunks=((tokens, 0),), samples=0, tokens=tokens, images=tuple(images))
