"""Made-up texts with a given number of tokens, which share what the prompts of requests share."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from attrs import frozen

from ksim.flow.request import Request
from ksim.foundation.errors import DataError, MissingExtra

#: Words that are a token each, with the space before them, in the vocabularies of GPT-2, Llama 3 and Qwen.
_TEXT = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so said what up its
about than into them can only other new some could time these two may then do first any my now such like our
over man me even most made after also did many must before through back years where much your way well down
should because each just those people how too little state good very make world still own see men work long get
here between both life being under never day same another know while last might us great old year off come since
against go came right used take three"""
WORDS = tuple(_TEXT.split())
#: Tokens of a piece of text that nothing names.
_PIECE = 64


@frozen
class Prose:
    """Texts of `words`, a token each.

    `special` tokens are put before them by the tokenizer that counts.
    """

    words: Sequence[str] = WORDS
    special: int = 0
    tokenizer: Any = None

    @classmethod
    def of(cls, tokenizer: str) -> "Prose":
        """Texts that the tokenizer at the path *tokenizer* counts; without one, every word is a token."""
        if not tokenizer:
            return cls()
        read = _read(Path(tokenizer))
        words = [word for word in WORDS if len(read.encode(f"the {word}", add_special_tokens=False).ids) == 2]
        if len(words) < 2:
            raise DataError(tokenizer, "has no common English words of one token each, of which texts could be made")
        return cls(words, len(read.encode("the").ids) - len(read.encode("the", add_special_tokens=False).ids), read)

    def text(self, request: Request) -> str:
        """The prompt of *request*; raises DataError for one that is shorter than the tokenizer's special tokens."""
        length = request.prompt - self.special
        if length < 1:
            raise DataError(f"request {request.id}", f"has a prompt of {request.prompt} tokens, but the tokenizer adds"
                                                     f" {self.special} special ones to every text")
        words: list[str] = []
        size = request.chunk_tokens if request.chunks else _PIECE
        for place in range(-(-length // size)):
            name = request.chunks[place] if place < len(request.chunks) else (request.id, place)
            words += self._piece(name, size)
        text = " ".join(words[:length])
        if self.tokenizer is not None and (found := len(self.tokenizer.encode(text).ids)) != request.prompt:
            raise DataError(f"request {request.id}", f"has a text of {found} tokens, not {request.prompt}: the"
                                                     " tokenizer joins words")
        return text

    def _piece(self, name: Hashable, size: int) -> list[str]:
        return Random(repr(name)).choices(self.words, k=size)


def _read(path: Path) -> Any:
    """The tokenizer at *path*; raises DataError for a file that is none, MissingExtra without the library."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizer", "--tokenizer") from None
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(str(path), "is not there; expected a model's tokenizer.json, or the folder with it")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(str(path), f"is no tokenizer.json: {error}") from None
