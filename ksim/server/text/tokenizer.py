"""What the server asks of a tokenizer."""

from collections.abc import Sequence
from typing import Protocol

from ksim.server.text.chat import Chat

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """Turns texts into tokens and back, and has words of which answers are made."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def longest_token(self) -> int: ...

    @property
    def lead(self) -> str: ...

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def first_ids(self) -> Sequence[int]: ...

    @property
    def next_ids(self) -> Sequence[int]: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def piece(self, number: int) -> str: ...

    def chat(self, chat: Chat) -> list[int]: ...
