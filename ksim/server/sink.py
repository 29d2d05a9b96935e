"""The body of an HTTP response, which is written as things happen, by whoever knows of them."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from attrs import define, field

from ksim.server.errors import ApiError
from ksim.server.reply import dumped

__all__ = ["Message", "Receive", "ResponseSink", "Send"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@define(eq=False)
class ResponseSink:
    """A response that is sent by `receive` and `send` of ASGI, while `done` is awaited; `headers` come with any."""

    receive: Receive
    send: Send
    headers: list[tuple[bytes, bytes]]
    _started: Message | None = field(default=None, init=False)
    _parts: list[bytes] = field(factory=list, init=False)
    _closed: bool = field(default=False, init=False)
    _gone: bool = field(default=False, init=False)
    _news: asyncio.Event = field(factory=asyncio.Event, init=False)

    @classmethod
    def of(cls, receive: Receive, send: Send, request_id: str) -> "ResponseSink":
        """A response to the request that is called so."""
        return cls(receive, send, [(b"x-request-id", request_id.encode("latin-1", "replace"))])

    def fail(self, error: ApiError) -> None:
        """Answer with *error*, and nothing else."""
        if error.status == 413:  # what is left of the body is not read
            self.headers.append((b"connection", b"close"))
        self.start(error.status, "application/json")
        self.write(dumped(error.body))
        self.close()

    def start(self, status: int, kind: str) -> None:
        """Begin with a status and a content type."""
        headers = [(b"content-type", kind.encode()), *self.headers]
        self._started = {"type": "http.response.start", "status": status, "headers": headers}

    def write(self, data: bytes) -> None:
        """Send this, now or as soon as the client takes it."""
        self._parts.append(data)
        self._news.set()

    def close(self) -> None:
        """End the response."""
        self._closed = True
        self._news.set()

    async def done(self) -> bool:
        """Return when all is sent, or the client is gone; the latter is False."""
        watcher = asyncio.create_task(self._watch())
        try:
            while not self._gone:
                await self._news.wait()
                self._news.clear()
                if await self._sent():
                    return True
            return False
        except OSError:  # the connection broke
            return False
        finally:
            watcher.cancel()

    async def _sent(self) -> bool:
        """Send what has come; return whether that was the end."""
        if self._gone or self._started is None:
            return False
        body, closed = b"".join(self._parts), self._closed
        self._parts.clear()
        if self._started["type"]:
            started, self._started = self._started, {"type": ""}
            if closed:
                started["headers"].append((b"content-length", str(len(body)).encode()))
            await self.send(started)
        await self.send({"type": "http.response.body", "body": body, "more_body": not closed})
        return closed

    async def _watch(self) -> None:
        """Wait until the client is gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._news.set()
