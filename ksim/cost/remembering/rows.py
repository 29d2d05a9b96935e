"""Estimates as bytes that say whether they are whole: of one kernel, or of all kinds of kernels at one size."""

from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksim.oracles import Estimate
from ksim.oracles.efficiency.answers import Codes, Estimates

__all__ = ["packed", "packed_sizes", "sealed", "unpacked", "unpacked_sizes", "whole"]

_NUMBERS = Struct("<6d?")
_CHECK, _BETWEEN = 8, "\x1f"
#: Of each kind, one after another, in the row of a size.
_COLUMNS = ("seconds", "waves", "idle", "eta", "low", "high", "extrapolated", "bound")
_FLOAT = np.dtype(np.float64)
_columns = attrgetter(*_COLUMNS)


def sealed(key: bytes, body: bytes) -> bytes:
    """The row of *body* under *key*: a check of both, and *body*."""
    return blake2b(key + body, digest_size=_CHECK).digest() + body


def whole(key: bytes, row: object) -> bytes | None:
    """What `sealed` made *row* of; None where *row* is not what it made for this *key*."""
    if not isinstance(row, bytes):
        return None
    body = row[_CHECK:]
    return body if row == sealed(key, body) else None


def packed(found: Estimate) -> bytes:
    """What is kept of an estimate: its numbers to the last bit, and its words."""
    numbers = _NUMBERS.pack(found.seconds, found.waves, found.idle, found.eta, found.low, found.high,
                            found.extrapolated)
    return numbers + _joined((found.bound, found.launch, found.source))


def unpacked(body: bytes) -> Estimate:
    """The estimate that `packed` made *body* of."""
    seconds, waves, idle, eta, low, high, extrapolated = _NUMBERS.unpack_from(body)
    bound, launch, source = _split(body[_NUMBERS.size:])
    return Estimate(seconds, bound, waves, idle, launch, source, eta, low, high, extrapolated)


def packed_sizes(found: Estimates, sizes: int) -> list[bytes]:
    """What is kept of each of so many *sizes*: the numbers of all kinds to the last bit, and their words.

    Columns are of (kinds x sizes,), as in `Several`.
    """
    numbers = _by_size(np.array(_columns(found), dtype=_FLOAT), sizes)
    names = [*found.launches, *found.sources]
    codes = _by_size(np.array([found.launch, found.source + len(found.launches)]), sizes)
    return [row.tobytes() + _joined([names[code] for code in words])
            for row, words in zip(numbers, codes.tolist(), strict=True)]


def unpacked_sizes(bodies: Sequence[bytes], kinds: int) -> Estimates:
    """Columns of (kinds x sizes,), of which `packed_sizes` made *bodies*, one of each size."""
    size = len(_COLUMNS) * kinds * _FLOAT.itemsize
    rows = np.frombuffer(b"".join([body[:size] for body in bodies]), dtype=_FLOAT)
    seconds, waves, idle, eta, low, high, extrapolated, bound = _by_kind(rows, len(_COLUMNS), len(bodies))
    codes, names = _coded([body[size:] for body in bodies])
    launch, source = _by_kind(codes, 2, len(bodies))
    return Estimates(seconds, bound.astype(np.intp), waves, idle, launch, source, eta, low, high,
                     extrapolated.astype(np.bool_), names, names)


def _by_size(columns: NDArray[Any], sizes: int) -> NDArray[Any]:
    """*columns* of (kinds x sizes,) as rows, one of each size."""
    return columns.reshape(len(columns), -1, sizes).transpose(2, 0, 1).reshape(sizes, -1)


def _by_kind(rows: NDArray[Any], columns: int, sizes: int) -> NDArray[Any]:
    """So many *columns* of (kinds x sizes,), which `_by_size` made *rows* of."""
    return rows.reshape(sizes, columns, -1).transpose(1, 2, 0).reshape(columns, -1)


def _coded(rows: Sequence[bytes]) -> tuple[Codes, list[str]]:
    """Words of each of *rows*, most of which say the same, as places in a list of all words: (rows, words)."""
    texts = {text: number for number, text in enumerate(dict.fromkeys(rows))}
    words = [_split(text) for text in texts]
    names = {name: code for code, name in enumerate(dict.fromkeys(name for each in words for name in each))}
    codes = np.array([[names[name] for name in each] for each in words], dtype=np.intp)
    return codes[[texts[row] for row in rows]], [*names]


def _joined(words: Sequence[str]) -> bytes:
    return _BETWEEN.join(words).encode()


def _split(text: bytes) -> list[str]:
    return text.decode().split(_BETWEEN)
