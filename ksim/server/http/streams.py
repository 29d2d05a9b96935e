"""The socket at which the server listens, bodies that are read up to a limit, and responses that are written in pieces.

A piece is written from within the event loop, without a task that wakes up for it.
"""

import asyncio
import errno
import json
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import coroutine
from typing import Any

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError
from ksim.server.errors import ApiError
from ksim.server.openai.kinds import problem
from ksim.server.openai.reply import to_json

__all__ = ["App", "Message", "Receive", "Send", "Stream", "disconnection", "ResponseSink", "Disconnected", "parsed",
           "read", "Address", "allow_many_files"]


Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


#: Bytes that wait for a client that reads too slowly, beyond the buffers of its socket, before it is cut off.
LIMIT = 1 << 20


@define(eq=False)
class Stream:
    """The body of a response, sent through ASGI's `send`, whose head the caller has sent.

    A piece goes to the socket at once, past ASGI where `direct` takes it.  Where the client reads too slowly, pieces
    wait for it in a task of its own, and nobody else waits; beyond `LIMIT`, they are dropped and `overrun` is called,
    once.
    """

    send: Send
    overrun: Callable[[], object] = lambda: None
    #: Sends a piece that is not the last one, or returns False.
    direct: Callable[[bytes], bool] = lambda piece: False
    ended: bool = field(default=False, init=False)  # nothing follows
    _backlog: list[bytes] | None = field(default=None, init=False)  # what waits, while the client is too slow
    _size: int = field(default=0, init=False)
    _task: asyncio.Future[None] | None = field(default=None, init=False)
    _cut: asyncio.Future[None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cut = asyncio.get_running_loop().create_future()

    def write(self, piece: bytes, last: bool = False) -> None:
        """Send *piece*, which may be the *last* one."""
        if self.ended:
            return
        if self._backlog is None and not last and self.direct(piece):
            return
        self.ended = last
        if self._backlog is not None:
            self._wait(piece)
        elif rest := _begin(self._sending(piece)):
            self._backlog = []
            self._task = asyncio.ensure_future(self._catch_up(rest))

    async def until_over(self, gone: "asyncio.Future[None]") -> bool:
        """Wait until all is sent, the client has *gone* or is cut off; return whether all is sent."""
        try:
            await asyncio.wait((gone, self._cut), return_when=asyncio.FIRST_COMPLETED)
        finally:
            complete, self.ended = self.ended and self._backlog is None, True
            for waiting in (gone, self._task):
                if waiting is not None:
                    waiting.cancel()
        return complete

    def _sending(self, piece: bytes) -> Awaitable[None]:
        return self.send({"type": "http.response.body", "body": piece, "more_body": not self.ended})

    def _wait(self, piece: bytes) -> None:
        assert self._backlog is not None, "only what follows others waits"
        self._size += len(piece)
        if self._size <= LIMIT:
            self._backlog.append(piece)
            return
        self.ended = True
        self._backlog.clear()
        self._cut.set_result(None)
        self.overrun()

    async def _catch_up(self, sending: Awaitable[None]) -> None:
        """Wait until the piece that is *sending* is sent, and send those that have come meanwhile."""
        await sending
        while self._backlog:
            pieces = b"".join(self._backlog)
            self._backlog.clear()
            self._size = 0
            await self._sending(pieces)
        self._backlog, self._task = None, None


def disconnection(receive: Receive) -> "asyncio.Future[None]":
    """Is done when ASGI says that the response is complete, or the client has gone; to be cancelled."""
    return asyncio.ensure_future(_disconnect(receive))


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _begin(sending: Awaitable[None]) -> Awaitable[None] | None:
    """Begin to await *sending*; return what is left to await, if it does not end at once."""
    assert isinstance(sending, Coroutine), "ASGI's send is an async function"
    try:
        waits_for = sending.send(None)
    except StopIteration:
        return None
    return _go_on(sending, waits_for)


@coroutine
def _go_on(begun: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has *begun* and *waits_for* a future."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(value)
    except StopIteration:
        return


@define(eq=False)
class ResponseSink(Stream):
    """A response whose status and headers go out with its first piece."""

    headers: list[tuple[bytes, bytes]] = field(factory=list, kw_only=True)
    #: Answers with an error, by default as vLLM does.
    refuse: Callable[["ResponseSink", ApiError], object] | None = field(default=None, init=False)
    _head: Message | None = field(default=None, init=False)

    @classmethod
    def of(cls, send: Send, request_id: str, direct: Callable[[bytes], bool] | None = None) -> "ResponseSink":
        """A response with the header X-Request-Id."""
        headers = [(b"x-request-id", request_id.encode("latin-1", "replace"))]
        return cls(send, direct=direct, headers=headers) if direct else cls(send, headers=headers)

    def fail(self, error: ApiError) -> None:
        """Answer with *error*, and nothing else."""
        if self.refuse is not None:
            self.refuse(self, error)
        else:
            self.whole(error.status, to_json(error.body))

    def whole(self, status: int, body: bytes) -> None:
        """Answer with JSON."""
        self.headers.append((b"content-length", str(len(body)).encode()))
        self.start(status, "application/json")
        self.write(body, True)

    def start(self, status: int, kind: str) -> None:
        """Begin with a status and a content type."""
        headers = [(b"content-type", kind.encode()), *self.headers]
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    def _sending(self, piece: bytes) -> Awaitable[None]:
        head, self._head = self._head, None
        return super()._sending(piece) if head is None else self._sending_first(head, piece)

    async def _sending_first(self, head: Message, piece: bytes) -> None:
        await self.send(head)
        await super()._sending(piece)


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


#: Open files that vLLM asks for.
_FILES = 65535


@frozen
class Address:
    """A `port` of a `host`, or the path of a Unix socket, `uds`."""

    host: str = "localhost"
    port: int = 8000
    uds: Path | None = None

    @contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """A bound socket, which is closed in the end; raises ConfigError if it cannot be bound."""
        listening = self._of_path(self.uds) if self.uds else self._of_port()
        try:
            yield listening
        finally:
            listening.close()
            if self.uds:
                self.uds.unlink(missing_ok=True)

    def url(self, bound: socket.socket) -> str:
        """The URL for clients."""
        if self.uds:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{bound.getsockname()[1]}"

    def _of_port(self) -> socket.socket:
        host = "127.0.0.1" if self.host == "localhost" else self.host
        try:
            family, *_, place = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise ConfigError("--host", f"{self.host!r} is no host here: {error}") from None
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
            listening.listen()
        except OSError as error:
            listening.close()
            raise self._refused(error) from None
        return listening

    def _refused(self, error: OSError) -> ConfigError:
        if error.errno == errno.EADDRINUSE:
            return ConfigError("--port", f"{self.port} is in use on {self.host}; choose another, or 0 for any free one")
        if error.errno == errno.EACCES:
            return ConfigError("--port", f"{self.port} is for privileged users; choose one from 1024 on")
        if error.errno == errno.EADDRNOTAVAIL:
            return ConfigError("--host", f"{self.host} is no address of this machine")
        return ConfigError("--port", f"{self.port} of {self.host}: {error.strerror}")

    @staticmethod
    def _of_path(path: Path) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and listening.connect_ex(str(path)):
                path.unlink()  # left by a server that was killed
            listening.close()
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(path))
            listening.listen()
        except OSError as error:
            listening.close()
            what = "is there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ConfigError("--uds", f"{path} {what}") from None
        return listening


def allow_many_files() -> None:
    """Raise this process's soft limit of open files."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
