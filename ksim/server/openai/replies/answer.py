"""Answers: made-up words of one token each, which are known before the first one is due."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from math import gcd
from typing import Any, TypeVar

from attrs import define, field, frozen

from ksim.server.openai.requests.fields import GenerateFields
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Answer", "Author", "stopped_by"]

T = TypeVar("T")


@frozen
class Answer:
    """The token `ids` of a sequence, and the `pieces` that they add to its text, also `escaped` as in JSON.

    `reason` is the finish_reason, and `stop` the stop string or stop token that has ended the answer, if one has.
    """

    ids: Sequence[int]
    pieces: Sequence[str]
    escaped: Sequence[bytes]
    reason: str
    stop: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _escaped(piece: str) -> bytes:
    return json.dumps(piece)[1:-1].encode()


def _repeated(of: Sequence[T], places: Sequence[int], length: int) -> list[T]:
    """The items at these *places*, repeated until there are *length* of them."""
    return (list(map(of.__getitem__, places)) * -(-length // len(places)))[:length]


@define
class Author:
    """Makes up answers of the words of `tokenizer`, the same ones for the same `seed`.

    An answer goes through all words in an order of its own, and then repeats them, so it is made by copying lists.
    """

    tokenizer: Tokenizer
    seed: int
    _pieces: list[str] = field(init=False)
    _escaped: list[bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = [f" {word}" for word in self.tokenizer.words]
        self._escaped = [_escaped(piece) for piece in self._pieces]

    def answer(self, asked: GenerateFields, key: tuple[int, ...], length: int, most: int, space: bool) -> Answer:
        """An answer of *length* tokens, or of fewer if a stop string or stop token ends it.

        It ends for "length" if *most* tokens were allowed and it has them.  *key* is the sequence's number.  With
        *space* the text begins with a space, if the tokenizer has a token for that.
        """
        places = self._places(key, length)
        ids = _repeated(self.tokenizer.next_ids, places, length)
        pieces, escaped = (_repeated(self._pieces, places, length), _repeated(self._escaped, places, length))
        if not (space and self.tokenizer.leading_space):
            ids[0], pieces[0] = self.tokenizer.first_ids[places[0]], self.tokenizer.words[places[0]]
            escaped[0] = _escaped(pieces[0])
        answer = Answer(ids, pieces, escaped, "length" if length >= most else "stop")
        return stopped_by(answer, asked) if asked.stops or asked.stop_token_ids else answer

    def _places(self, key: tuple[int, ...], length: int) -> list[int]:
        """The words it begins with: every so many, from a first one on, until each has come once."""
        drawn = int.from_bytes(blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest())
        size = len(self._pieces)
        stride = next(step for step in range(1 + drawn // size % size, 2 * size + 1) if gcd(step, size) == 1)
        return [at % size for at in range(drawn % size, drawn % size + min(length, size) * stride, stride)]


def stopped_by(answer: Answer, asked: GenerateFields) -> Answer:
    """*answer* up to the first stop token or stop string in it, after `min_tokens`."""
    ends = [(end, place, stop) for place, stop in enumerate((*(asked.stop_token_ids or ()), *asked.stops))
            if (end := _end(answer, stop, asked.min_tokens)) is not None]
    if not ends:
        return answer
    (tokens, _), _, stop = first = min(ends, key=lambda end: (end[0][0], end[1]))
    pieces = answer.pieces[:tokens]
    visible = first[0][1] + (_size(answer, stop, tokens) if asked.include_stop_str_in_output else 0)
    shown = _cut(pieces, visible)
    return Answer(answer.ids[:tokens], shown, [*map(_escaped, shown)], "stop", stop)


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


def _cut(pieces: Sequence[str], visible: int) -> list[str]:
    """*pieces* of which together only the first *visible* characters are left."""
    kept, left = list[Any](), visible
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept
