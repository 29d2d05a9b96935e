"""Reading the body of an HTTP request: JSON up to a limit."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ksim.server.errors import ApiError
from ksim.server.http.asgi import Receive
from ksim.server.openai.requests.kinds import problem

__all__ = ["Disconnected", "parsed", "read"]


#: How JSON may write half of a pair of surrogates.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Disconnected(Exception):
    """The client has disconnected before it sent the whole body."""


async def read(headers: Mapping[str, str], receive: Receive, most: int) -> bytes:
    """A body of at most *most* bytes; raises ApiError for one that is longer or not JSON, and Disconnected."""
    if headers.get("content-type", "").lower().partition(";")[0] != "application/json":
        raise ApiError("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > most):
        raise _too_large(most)
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(most: int) -> ApiError:
    return ApiError(f"The request body is larger than {most:,} bytes, the limit of this server (--max-body-size)", 413,
                    "Request Entity Too Large")


def parsed(body: bytes) -> Any:
    """The JSON of *body*; raises ApiError for what vLLM does not read."""
    try:
        text = body.decode(json.detect_encoding(body))
        value = json.loads(text)
        if _SURROGATE.search(text) and (lone := next(_lone_surrogates(value, "body"), None)):
            raise _no_text(*lone)
        return value
    except json.JSONDecodeError as error:
        told = problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, error=error.msg)
        raise ApiError(f"1 validation error:\n  {told}", param=f"body.{error.pos}") from None
    except (ValueError, RecursionError):  # not UTF-8, numbers of thousands of digits, thousands of brackets
        raise ApiError("There was an error parsing the body") from None


def _lone_surrogates(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """The places of texts that have half of a pair of surrogates, which no encoding can write, and these texts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _lone_surrogates(key, place)
            yield from _lone_surrogates(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _lone_surrogates(item, f"{place}.{number}")
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        yield place, value


def _no_text(place: str, value: str) -> ApiError:
    message = "Input should be a valid string, unable to parse raw data as a unicode string"
    told = problem("string_unicode", place, message, value.encode("utf-8", "replace").decode())
    return ApiError(f"1 validation error:\n  {told}", param=place)
