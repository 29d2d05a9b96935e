"""A chat: who said what, and the images in it."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.flow.images import Image

__all__ = ["Chat"]


@frozen
class Chat:
    """Messages as pairs of a role and a text, and the `tools` that may be called.

    Images are with the numbers of their messages.  An answer follows (`answered`), or the last message is `continued`.
    `options` go to the chat template.
    """

    messages: Sequence[tuple[str, str]]
    images: Sequence[tuple[int, Image]] = ()
    tools: Sequence[Any] = ()
    answered: bool = True
    continued: bool = False
    options: dict[str, Any] | None = None
