"""Prompts as case files write them: lists of pieces that stand for tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint64]

_MASK = (1 << 64) - 1


def length(pieces: Iterable[Any]) -> int:
    """How many tokens *pieces* stand for; raises ValueError for a piece of an unknown kind."""
    return sum(_count(place, piece) for place, piece in enumerate(pieces))


def tokens(pieces: Iterable[Any]) -> Tokens:
    """The tokens of *pieces*: [seed, n] is a random stream, ["t", token, n] repeats a token, a number is one token."""
    return np.concatenate([_tokens(piece) for piece in pieces])


def blocks(content: Tokens, size: int, more: int = 0) -> Sequence[bytes]:
    """*content* in blocks of *size* tokens, as bytes, each with *more* tokens of the next; the last block is partial or
    empty."""
    return [content[first: first + size + more].tobytes() for first in range(0, len(content) + 1, size)]


def _count(place: int, piece: Any) -> int:
    match piece:
        case token if _whole(token):
            return 1
        case [seed, count] | ["t", seed, count] if _whole(seed, count):
            return int(count)
    raise ValueError(f"'prompt' piece {place} is {piece!r}; expected a token, [seed, count] or [\"t\", token, count]")


def _whole(*values: Any) -> bool:
    return all(type(value) is int and 0 <= value <= _MASK for value in values)


def _tokens(piece: Any) -> Tokens:
    match piece:
        case [seed, count]:
            return _stream(seed, count)
        case ["t", token, count]:
            return np.full(count, token, np.uint64)
        case token:
            return np.array([token], np.uint64)


def _stream(seed: int, count: int) -> Tokens:
    """The first *count* tokens of stream *seed*: SplitMix64's mixing of a counter, modulo 2 ** 64."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & _MASK)
    z = np.arange(count, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03) + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    tokens: Tokens = (z ^ (z >> np.uint64(31))) % np.uint64(100_000) + np.uint64(1000)
    return tokens
