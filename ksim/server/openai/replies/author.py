"""The author of answers: words of one token each, which are known before the first one is due."""

from collections.abc import Sequence
from hashlib import blake2b
from math import gcd
from typing import TypeVar

from attrs import define, field

from ksim.server.openai.replies.answer import Answer, escaped, stopped_by
from ksim.server.openai.requests.fields import GenerateFields
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Author"]

T = TypeVar("T")


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
        self._escaped = [escaped(piece) for piece in self._pieces]

    def answer(self, asked: GenerateFields, key: tuple[int, ...], length: int, most: int, space: bool) -> Answer:
        """An answer of *length* tokens, or of fewer if a stop string or stop token ends it.

        It ends for "length" if *most* tokens were allowed and it has them.  *key* is the sequence's number.  With
        *space* the text begins with a space, if the tokenizer has a token for that.
        """
        places = self._places(key, length)
        ids = _repeated(self.tokenizer.next_ids, places, length)
        pieces, as_json = (_repeated(self._pieces, places, length), _repeated(self._escaped, places, length))
        if not (space and self.tokenizer.leading_space):
            ids[0], pieces[0] = self.tokenizer.first_ids[places[0]], self.tokenizer.words[places[0]]
            as_json[0] = escaped(pieces[0])
        answer = Answer(ids, pieces, as_json, "length" if length >= most else "stop")
        return stopped_by(answer, asked) if asked.stops or asked.stop_token_ids else answer

    def _places(self, key: tuple[int, ...], length: int) -> list[int]:
        """The words it begins with: every so many, from a first one on, until each has come once."""
        drawn = int.from_bytes(blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest())
        size = len(self._pieces)
        stride = next(step for step in range(1 + drawn // size % size, 2 * size + 1) if gcd(step, size) == 1)
        return [at % size for at in range(drawn % size, drawn % size + min(length, size) * stride, stride)]
