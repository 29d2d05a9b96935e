"""Made-up log-probabilities in the shapes of vLLM: the sampled token is always the likeliest one."""

from collections.abc import Iterator, Sequence
from math import exp, log
from typing import Any

from attrs import define

from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Logprobs"]

#: Tokens for a request that asks for the whole vocabulary (-1).
_MOST = 20


@define
class Logprobs:
    """Makes up log-probabilities of tokens and of the `most` likeliest others; `as_ids` shows tokens as ids."""

    tokenizer: Tokenizer
    most: int
    as_ids: bool = False

    def chat(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """The log-probabilities of sampled tokens in the shape of a chat."""
        places = [{**likely[0], "top_logprobs": likely[:self._number]} for likely in self._entries(ids, pieces)]
        return {"content": places}

    def completion(self, ids: Sequence[int], pieces: Sequence[str], start: int, first: bool) -> dict[str, Any]:
        """The same for a completion whose text starts at *start*; the *first* token of a prompt has none."""
        tokens, offsets = [self._shown(number, piece) for number, piece in zip(ids, pieces, strict=True)], list[int]()
        for token in tokens:
            offsets.append(start)
            start += len(token)
        alternatives = [{entry["token"]: entry["logprob"] for entry in likely[:max(self._number, 1)]}
                 for likely in self._entries(ids, pieces)]
        own: list[float | None] = [self._logprob(number) for number in ids]
        tops: list[dict[str, float] | None] = [*alternatives]
        if first and ids:
            own[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": own, "tokens": tokens, "top_logprobs": tops}

    def prompt(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        """The log-probabilities of a prompt, by token ids."""
        pieces = [self.tokenizer.piece(number) for number in ids]
        places = [{str(number): {"logprob": entry["logprob"], "rank": rank, "decoded_token": entry["token"]}
                 for rank, (number, entry) in enumerate(zip(self._likely(own), likely, strict=True), 1)}
                for own, likely in zip(ids, self._entries(ids, pieces), strict=True)]
        return [None, *places[1:]]

    @property
    def _number(self) -> int:
        return _MOST if self.most < 0 else self.most

    def _likely(self, number: int) -> list[int]:
        """The token itself, and the others that are likeliest."""
        words = self.tokenizer.next_ids
        others = [word for at in range(self._number) if (word := words[(number + at) % len(words)]) != number]
        return [number, *dict.fromkeys(others)][:max(self._number, 1)]

    def _entries(self, ids: Sequence[int], pieces: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """For each token, the entries of itself and of the likeliest others, in the shape of a chat."""
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
        """The log of a probability above one half."""
        return -(1 + number * 2654435761 % 60) / 100
