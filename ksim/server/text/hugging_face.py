"""A tokenizer from a tokenizer.json of Hugging Face."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.server.text.chat import Chat
from ksim.server.text.chat_template import ChatTemplate
from ksim.server.text.made_up import COMMON

__all__ = ["HuggingFaceTokenizer"]

_KEY = "--tokenizer"


@define
class HuggingFaceTokenizer:
    """A `codec` of the library tokenizers, and the chat `template` beside it.

    `words` are the common words that it encodes to one token each.
    """

    codec: Any
    template: ChatTemplate
    longest_token: int = field(init=False)
    leading_space: str = field(init=False)
    words: Sequence[str] = field(init=False)
    first_ids: Sequence[int] = field(init=False)
    next_ids: Sequence[int] = field(init=False)

    @classmethod
    def read(cls, path: Path) -> "HuggingFaceTokenizer":
        """Read a tokenizer.json, or a folder with one; raises ConfigError for any other file."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizer", _KEY) from None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            codec = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            what = "is not there" if not file.is_file() else f"is not a tokenizer.json of Hugging Face's ({error})"
            raise ConfigError(_KEY, f"{file} {what}") from None
        codec.no_truncation()
        codec.no_padding()
        return cls(codec, ChatTemplate.beside(file))

    def __attrs_post_init__(self) -> None:
        self.longest_token = max(map(len, self.codec.get_vocab()), default=1)
        known = [word for word in COMMON if self._is_one_token(word)]
        self.words = self._independent(known)
        if len(self.words) < 2:
            raise ConfigError(_KEY, "has no common English words among its tokens, of which answers are made")
        self.first_ids = [self.encode(word, False)[0] for word in self.words]
        self.next_ids = [self.encode(f"{self.words[0]} {word}", False)[1] for word in self.words]
        after_space = [self.encode(f" {word}", False) for word in self.words]
        self.leading_space = " " if after_space == [[number] for number in self.next_ids] else ""

    @property
    def vocabulary(self) -> int:
        return int(self.codec.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self.codec.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.codec.decode(list(ids)))

    def piece(self, number: int) -> str:
        before = self.first_ids[0]
        return self.decode([before, number]).removeprefix(self.decode([before]))

    def chat(self, chat: Chat) -> list[int]:
        return self.encode(self.template.text(chat), False)

    def _is_one_token(self, word: str) -> bool:
        return len(self.encode(word, False)) == 1 and len(self.encode(f"{word} {word}", False)) == 2

    def _independent(self, words: list[str]) -> tuple[str, ...]:
        """Those of *words* that stay one token each beside each other, tried in eight random orders."""
        draw = random.Random(0)
        for _ in range(8):
            draw.shuffle(words)
            codes = self.codec.encode(" ".join(words), add_special_tokens=False)
            spans = {span[1] for span in codes.offsets}
            ends, kept = 0, list[str]()
            for word in words:
                ends += len(word)
                if ends in spans:
                    kept.append(word)
                ends += 1
            words = kept if len(codes.ids) != len(words) else words
        return tuple(sorted(words))

