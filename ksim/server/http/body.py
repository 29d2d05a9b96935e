"""Reading the body of an HTTP request: JSON up to a limit."""

import json
from collections.abc import Mapping
from typing import Any

from ksim.server.errors import ApiError
from ksim.server.http.asgi import Receive
from ksim.server.openai.requests.kinds import problem

__all__ = ["Disconnected", "read_json"]


class Disconnected(Exception):
    """The client has disconnected before it sent the whole body."""


async def read_json(headers: Mapping[str, str], receive: Receive, most: int) -> Any:
    """The JSON of a body of at most *most* bytes; raises ApiError for any other body, and Disconnected."""
    if headers.get("content-type", "").lower().partition(";")[0] != "application/json":
        raise ApiError("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
    return _parsed(await _read(headers, receive, most))


async def _read(headers: Mapping[str, str], receive: Receive, most: int) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
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


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        told = problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, error=error.msg)
        raise ApiError(f"1 validation error:\n  {told}", param=f"body.{error.pos}") from None
    except (ValueError, RecursionError):  # not UTF-8, numbers of thousands of digits, thousands of brackets
        raise ApiError("There was an error parsing the body") from None
