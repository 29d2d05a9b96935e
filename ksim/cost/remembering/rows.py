"""Estimates as bytes that say whether they are whole."""

from hashlib import blake2b
from struct import Struct

from ksim.cost.oracles import Estimate

__all__ = ["packed", "unpacked"]

_NUMBERS = Struct("<6d?")
_CHECK, _BETWEEN = 8, "\x1f"


def packed(key: bytes, found: Estimate) -> bytes:
    """What is kept of an estimate under *key*: its numbers to the last bit, its words, and a check of all and *key*."""
    numbers = _NUMBERS.pack(found.seconds, found.waves, found.idle, found.eta, found.low, found.high,
                            found.extrapolated)
    body = numbers + _BETWEEN.join((found.bound, found.launch, found.source)).encode()
    return _check(key, body) + body


def unpacked(key: bytes, row: object) -> Estimate | None:
    """The estimate that `packed` made *row* of; None where *row* is not what it made for this *key*."""
    if not isinstance(row, bytes) or row[:_CHECK] != _check(key, row[_CHECK:]):
        return None
    seconds, waves, idle, eta, low, high, extrapolated = _NUMBERS.unpack_from(row, _CHECK)
    bound, launch, source = row[_CHECK + _NUMBERS.size:].decode().split(_BETWEEN)
    return Estimate(seconds, bound, waves, idle, launch, source, eta, low, high, extrapolated)


def _check(key: bytes, body: bytes) -> bytes:
    return blake2b(key + body, digest_size=_CHECK).digest()
