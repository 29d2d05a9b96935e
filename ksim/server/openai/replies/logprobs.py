"""Made-up log-probabilities, in the shapes of vLLM's two APIs: what is sampled is always the likeliest token."""

from collections.abc import Iterator, Sequence
from math import exp, log
from typing import Any

from attrs import define

from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Logprobs"]

#: Where all of the vocabulary is asked for, so many tokens are told of.
_MOST = 20


@define
class Logprobs:
    """Makes up log-probabilities of tokens, and of the likeliest others; with `as_ids`, tokens are shown by number."""

    tokenizer: Tokenizer
    most: int
    as_ids: bool = False

    def chat(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """Those of sampled tokens as a chat has them."""
        places = [{**likely[0], "top_logprobs": likely[:self._number]} for likely in self._entries(ids, pieces)]
        return {"content": places}

    def completion(self, ids: Sequence[int], pieces: Sequence[str], start: int, first: bool) -> dict[str, Any]:
        """The same as a completion has them, whose text starts at *start*; the *first* token of a prompt has none."""
        tokens, offsets = [self._shown(number, piece) for number, piece in zip(ids, pieces, strict=True)], list[int]()
        for token in tokens:
            offsets.append(start)
            start += len(token)
        found = [{entry["token"]: entry["logprob"] for entry in likely[:max(self._number, 1)]}
                 for likely in self._entries(ids, pieces)]
        own: list[float | None] = [self._logprob(number) for number in ids]
        tops: list[dict[str, float] | None] = [*found]
        if first and ids:
            own[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": own, "tokens": tokens, "top_logprobs": tops}

    def prompt(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        """Those of a prompt's tokens, by their numbers."""
        pieces = [self.tokenizer.piece(number) for number in ids]
        told = [{str(number): {"logprob": entry["logprob"], "rank": rank, "decoded_token": entry["token"]}
                 for rank, (number, entry) in enumerate(zip(self._likely(own), likely, strict=True), 1)}
                for own, likely in zip(ids, self._entries(ids, pieces), strict=True)]
        return [None, *told[1:]]

    @property
    def _number(self) -> int:
        return _MOST if self.most < 0 else self.most

    def _likely(self, number: int) -> list[int]:
        """The token, and those that are likeliest beside it."""
        words = self.tokenizer.next_ids
        others = [word for at in range(self._number) if (word := words[(number + at) % len(words)]) != number]
        return [number, *dict.fromkeys(others)][:max(self._number, 1)]

    def _entries(self, ids: Sequence[int], pieces: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """For each token itself and the likeliest others, as a chat tells of them."""
        for number, piece in zip(ids, pieces, strict=True):
            own = self._logprob(number)
            yield [self._entry(other, piece if other == number else self.tokenizer.piece(other),
                               own if other == number else log((1 - exp(own)) / 2**rank))
                   for rank, other in enumerate(self._likely(number))]

    def _entry(self, number: int, piece: str, value: float) -> dict[str, Any]:
        token = self._shown(number, piece)
        return {"token": token, "logprob": value, "bytes": list(token.encode("utf-8", "replace"))}

    def _shown(self, number: int, piece: str) -> str:
        return f"token_id:{number}" if self.as_ids else piece

    @staticmethod
    def _logprob(number: int) -> float:
        """Of a probability above one half."""
        return -(1 + number * 2654435761 % 60) / 100
