"""The tokenizer of a server without `--tokenizer`: every id is a word, and every piece of a text has an id."""

import json
import re
from collections.abc import Iterable, Sequence
from zlib import crc32

from attrs import define, field

from ksim.server.text.chat import Chat

__all__ = ["COMMON", "MadeUpTokenizer"]

#: A token is up to six letters with the space before them, up to three digits, up to three marks with the space before
#: them, a character of CJK, or up to sixteen of white space.
_PIECES = re.compile(r"[\u2e80-\uffef]| ?[^\W\d_]{1,6}|\d{1,3}| ?[^\s\w]{1,3}|_|\s{1,16}(?!\S)|\s")
_WORDS = (
    "the of and to in is that for it as with was on are by be this at from have or an not but they which you all can"
    " more one time when about other some its into than only new also two may like then first any work use how our well"
    " way even want give day most us good year see know take them could look come over think back after state high low"
    " load step batch queue token model page cache block rate cost test plan path case part side line point place group"
    " wait fill serve send read write hold free move start end ask say show find keep turn reach count share grow slow"
    " fast wide deep long short large small early late often never once twice whole half next last same each such much"
    " many few both own just still yet here there where while since until under above below near far again left right"
    " open close clear plain simple solid quick calm warm cold light dark green blue red white black brown grey water"
    " stone river tree field house road town table chair paper book story letter word name number question answer"
)
#: Words that are one token each here, and in most tokenizers.
COMMON = tuple(word for word in dict.fromkeys(_WORDS.split()) if len(word) < 6)
_CONSONANTS, _VOWELS = "bdfghjklmnprstvwz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
_THREE_SYLLABLES = re.compile(rf" (?:[{_CONSONANTS}][{_VOWELS}]){{3}}")
#: The last ids are marks in chats; the smallest vocabulary; pieces whose ids are cached.
_MARKS, _MIN_VOCABULARY, _MAX_KNOWN = 3, 256, 200_000


def _syllables(number: int) -> str:
    """A word of three syllables for each *number*."""
    base = len(_SYLLABLES)
    return _SYLLABLES[number // base**2 % base] + _SYLLABLES[number // base % base] + _SYLLABLES[number % base]


def _at_least(size: int) -> int:
    return max(size, _MIN_VOCABULARY)


@define
class MadeUpTokenizer:
    """Cuts text into pieces, about four for three English words, and gives each an id below `vocabulary`.

    What `decode` returns is encoded to the same ids.  The first ids are common words, the others words of three
    syllables; a piece that is none of them has its checksum as an id.
    """

    vocabulary: int = field(converter=_at_least)
    leading_space: str = " "
    longest_token: int = 16
    words: Sequence[str] = field(init=False)
    _known: dict[str, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.words = COMMON[:self.vocabulary - _MARKS]
        self._known.update({f" {word}": number for number, word in enumerate(self.words)})

    @property
    def first_ids(self) -> Sequence[int]:
        return range(len(self.words))

    @property
    def next_ids(self) -> Sequence[int]:
        return range(len(self.words))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of *text*; this tokenizer has no *special* ones."""
        return [*map(self._id, _PIECES.findall(f" {text}" if text[:1].isalpha() else text))]

    def decode(self, ids: Iterable[int]) -> str:
        """A text with these *ids*, without the marks of chats."""
        return "".join(map(self.piece, ids))[1:]

    def piece(self, number: int) -> str:
        if number >= self.vocabulary - _MARKS:
            return ""
        return f" {self.words[number] if number < len(self.words) else _syllables(number - len(self.words))}"

    def chat(self, chat: Chat) -> list[int]:
        """The ids of the tools, and for each message those of a mark, its role, its content and another mark."""
        begin, end, tools = range(self.vocabulary - 3, self.vocabulary)
        ids = [tools, *self.encode(json.dumps(chat.tools))] if chat.tools else []
        for role, content in chat.messages:
            ids += [begin, self._checksum(role), *self.encode(content), end]
        if chat.continued and chat.messages:
            del ids[-1]
        return [*ids, begin, self._checksum("assistant")] if chat.answered else ids

    def _id(self, piece: str) -> int:
        number = self._known.get(piece)
        if number is None:
            number = self._number(piece)
            if len(self._known) < _MAX_KNOWN:
                self._known[piece] = number
        return number

    def _number(self, piece: str) -> int:
        """The id of a piece that has not been seen before."""
        if _THREE_SYLLABLES.fullmatch(piece):
            parts = [_SYLLABLES.index(piece[at:at + 2]) for at in (1, 3, 5)]
            number = len(self.words) + (parts[0] * len(_SYLLABLES) + parts[1]) * len(_SYLLABLES) + parts[2]
            if number < self.vocabulary - _MARKS:
                return number
        return self._checksum(piece)

    def _checksum(self, piece: str) -> int:
        return crc32(piece.encode("utf-8", "replace")) % (self.vocabulary - _MARKS)
