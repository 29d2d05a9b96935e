"""Vision encoders: from an image's size to patches, from patches to tokens of the language model.

An encoder's operations are written like those of a decoder (`ksim.compute.model_ops`), over letters of its own:

    t  patches of the step          m  hidden size                 M  vector of the patches that are merged
    s  tokens for the decoder       K  heads                       N  hidden size of the decoder
    P  values of a patch            h  head dimension              D  inner size of the adapter
    B  learned positions            F  size of the MLP             g  2: gate and up

i is 3: queries, keys and values.  Class tokens count as patches.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, cast

import attrs

from ksim.flow.request import Patches
from ksim.foundation.errors import ConfigError

__all__ = ["Processor", "adjusted"]


class Processor(Protocol):
    """A model's image processor, which makes patches and tokens of sizes; a frozen attrs class.

    Its fields are the keys of vLLM's ``--mm-processor-kwargs`` that matter here, but for those with a leading
    underscore.  The chat template puts so many tokens `around` those of an image, of which `lead` are separators
    before the first that the encoder replaces.  If the encoder `shares_images`, each
    rank may have all of it, and a part of the images (``--mm-encoder-tp-mode data``).  If it `keeps_heads`, each rank
    has all heads where ranks do not divide them, as vLLM's intern_vit.py alone has it; else they cannot share it.
    """

    __attrs_attrs__: ClassVar[Any]
    around: ClassVar[int]
    lead: ClassVar[int]
    shares_images: ClassVar[bool]
    keeps_heads: ClassVar[bool]

    def patches(self, width: int, height: int) -> Patches:
        """The patches of an image; raises ConfigError for one that the model's processor refuses."""
        ...

    def tokens(self, width: int, height: int) -> int:
        """The number of tokens of the prompt that stand for it, with separators, but without those around them."""
        ...

    def largest(self) -> tuple[int, int]:
        """The size of an image with the most tokens: width and height."""
        ...

    def video_embeds(self, longest: int) -> int:
        """The most tokens of a video in a prompt of *longest* tokens; 0 for a model without videos."""
        ...


def adjusted(processor: Processor, settings: Mapping[str, Any]) -> Processor:
    """*processor* with other *settings*; raises ConfigError for those that it does not have."""
    known = [each.name for each in attrs.fields(type(processor)) if not each.name.startswith("_")]
    for name in settings:
        if name not in known:
            raise ConfigError(f"serve.mm_processor_kwargs.{name}", "the model's image processor has no such setting;"
                                                                   f" it has {', '.join(known)}")
    changed: Any = processor
    try:
        return cast("Processor", attrs.evolve(changed, **settings))
    except (TypeError, ValueError) as error:
        raise ConfigError("serve.mm_processor_kwargs", str(error)) from None
