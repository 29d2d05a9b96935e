"""What the server asks of a tokenizer."""

from collections.abc import Sequence
from typing import Protocol

from ksim.server.text.chat import Chat

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """Turns texts into token ids and back, and has the words of which answers are made."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        ...

    @property
    def longest_token(self) -> int:
        """Characters of the longest token."""
        ...

    @property
    def words(self) -> Sequence[str]:
        """Words that are one token each, in any order."""
        ...

    @property
    def first_ids(self) -> Sequence[int]:
        """The ids of `words` at the beginning of a text."""
        ...

    @property
    def next_ids(self) -> Sequence[int]:
        """The ids of `words` after a space."""
        ...

    @property
    def leading_space(self) -> str:
        """A space, if a text may begin with one that belongs to the token of its first word; else nothing."""
        ...

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of *text*, with the *special* ones around it that the tokenizer adds."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of *ids*."""
        ...

    def piece(self, number: int) -> str:
        """What the token with this id adds to a text."""
        ...

    def chat(self, chat: Chat) -> list[int]:
        """The ids of the prompt that *chat* makes."""
        ...
