"""Images of a chat: their sizes come from their headers, their identities from all of their bytes."""

import base64
import binascii
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from ksim.flow.images import Image
from ksim.server.errors import ApiError, invalid

__all__ = ["image_of"]

#: Pixels of an image at a URL: the server fetches nothing.
_NOT_FETCHED = (1024, 1024)
_MAX_SIDE = 2**16


def image_of(value: Any) -> Image:
    """The image of an `image_url` part of a message; raises ApiError if its size cannot be read.

    Two images are the same if their bytes, or their URLs, are equal.
    """
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise invalid("image_url must have a url, such as data:image/png;base64,...", "image_url")
    width, height = _size(url) if url.startswith("data:") else _NOT_FETCHED
    return Image(width, height, 2**31, int.from_bytes(blake2b(url.encode(), digest_size=6).digest()))


def _size(url: str) -> tuple[int, int]:
    head, comma, packed = url.partition(",")
    try:
        data = base64.b64decode(packed, validate=True) if comma and head.endswith(";base64") else b""
    except (binascii.Error, ValueError):
        data = b""
    size = next(_sizes(data), None)
    if size is None or not all(0 < side <= _MAX_SIDE for side in size):
        raise ApiError("Failed to load image: cannot read its size; expected PNG, JPEG, GIF or WebP in base64", 422,
                       "UnprocessableEntityError", "image_url")
    return size


def _sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """The size in the header of a PNG, GIF, JPEG or WebP; nothing for other data."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        yield int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if data[:4] == b"GIF8" and len(data) >= 10:
        yield int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data[:2] == b"\xff\xd8":
        yield from _jpeg_size(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        yield _webp_size(data)


def _jpeg_size(data: bytes) -> Iterator[tuple[int, int]]:
    """The size in a JPEG's frame header, which follows other segments."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            yield int.from_bytes(data[at + 7:at + 9]), int.from_bytes(data[at + 5:at + 7])
            return
        at += 2 + max(int.from_bytes(data[at + 2:at + 4]), 2)


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
