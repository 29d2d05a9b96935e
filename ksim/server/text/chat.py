"""A chat: its messages, images and tools."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.flow.images import Image

__all__ = ["Chat"]


@frozen
class Chat:
    """The messages of a chat, as pairs of a role and a text.

    Each image comes with the number of its message.  `tools` are JSON schemas.  The prompt ends with the beginning of
    an answer if it is to be `answered`, or with the last message if that is to be `continued`.  `options` go to the
    chat template (`chat_template_kwargs`).
    """

    messages: Sequence[tuple[str, str]]
    images: Sequence[tuple[int, Image]] = ()
    tools: Sequence[Any] = ()
    answered: bool = True
    continued: bool = False
    options: dict[str, Any] | None = None
