"""What a sequence answers: made-up words, each of them a token, which are known before the first one is due."""

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from math import gcd
from typing import Any, Protocol

from attrs import define, field, frozen

from ksim.server.chat import Chat
from ksim.server.fields import GenerateFields

__all__ = ["Answer", "Author", "Tokenizer", "stopped_by"]


class Tokenizer(Protocol):
    """Turns texts into tokens and back, and has words of which answers are made."""

    @property
    def vocabulary(self) -> int: ...

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


@frozen
class Answer:
    """The tokens of a sequence: `ids`, and the `pieces` that they add to its text.

    It ends for `reason`, at the stop string or the stop token `stop`, if it has one.
    """

    ids: Sequence[int]
    pieces: Sequence[str]
    reason: str
    stop: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @cached_property
    def escaped(self) -> list[bytes]:
        """The pieces as they are within a text of JSON."""
        return [_escaped(piece) for piece in self.pieces]


_ESCAPED: dict[str, bytes] = {}


def _escaped(piece: str) -> bytes:
    known = _ESCAPED.get(piece)
    if known is None:
        known = json.dumps(piece)[1:-1].encode()
        if len(_ESCAPED) < 10_000:
            _ESCAPED[piece] = known
    return known


@define
class Author:
    """Makes up answers in the words of `tokenizer`; the same for the same `seed`."""

    tokenizer: Tokenizer
    seed: int
    _next: list[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = [f" {word}" for word in self.tokenizer.words]

    def answer(self, asked: GenerateFields, key: tuple[int, ...], length: int, most: int, leads: bool) -> Answer:
        """An answer of *length* tokens, of *most* that are asked for, or of fewer where what is asked for stops it.

        *key* numbers the sequence; one that *leads* begins with a space where the tokenizer has such words.
        """
        places = self._places(key, length)
        ids, pieces = [self.tokenizer.next_ids[at] for at in places], [self._next[at] for at in places]
        if not (leads and self.tokenizer.lead):
            ids[0], pieces[0] = self.tokenizer.first_ids[places[0]], self.tokenizer.words[places[0]]
        answer = Answer(ids, pieces, "length" if length >= most else "stop")
        return stopped_by(answer, asked) if asked.stops or asked.stop_token_ids else answer

    def _places(self, key: tuple[int, ...], length: int) -> list[int]:
        """Which words it has: from one on, every so many."""
        drawn = int.from_bytes(blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest())
        size = len(self.tokenizer.words)
        stride = next(step for step in range(1 + drawn // size % size, 2 * size + 1) if gcd(step, size) == 1)
        return [at % size for at in range(drawn % size, drawn % size + length * stride, stride)]


def stopped_by(answer: Answer, asked: GenerateFields) -> Answer:
    """*answer* up to the first stop token or stop string in it, after `min_tokens`."""
    ends = [(end, place, stop) for place, stop in enumerate((*(asked.stop_token_ids or ()), *asked.stops))
            if (end := _end(answer, stop, asked.min_tokens)) is not None]
    if not ends:
        return answer
    (tokens, _), _, stop = first = min(ends, key=lambda end: (end[0][0], end[1]))
    pieces = list(answer.pieces[:tokens])
    visible = first[0][1] + (_size(answer, stop, tokens) if asked.include_stop_str_in_output else 0)
    return Answer(answer.ids[:tokens], _cut(pieces, visible), "stop", stop)


def _end(answer: Answer, stop: str | int, least: int) -> tuple[int, int] | None:
    """After how many tokens *stop* is complete, and how many characters are before it."""
    if isinstance(stop, int):
        at = next((at for at, token in enumerate(answer.ids) if token == stop and at >= least), None)
        return None if at is None else (at + 1, sum(map(len, answer.pieces[:at])))
    before = sum(map(len, answer.pieces[:least]))
    at = answer.text.find(stop, max(0, before - len(stop) + 1))
    if at < 0:
        return None
    tokens, seen = 0, 0
    while seen < at + len(stop):
        seen += len(answer.pieces[tokens])
        tokens += 1
    return tokens, at


def _size(answer: Answer, stop: str | int, tokens: int) -> int:
    return len(stop) if isinstance(stop, str) else len(answer.pieces[tokens - 1])


def _cut(pieces: list[str], visible: int) -> list[str]:
    """*pieces* of which together only the first *visible* characters are left."""
    kept, left = list[Any](), visible
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept
