"""The response to a request, written from callbacks of a live fleet."""

from collections.abc import Awaitable, Callable

from attrs import define, field

from ksim.server.errors import ApiError
from ksim.server.http.asgi import Message, Send
from ksim.server.http.streams import Stream
from ksim.server.openai.replies.reply import to_json

__all__ = ["ResponseSink"]


@define(eq=False)
class ResponseSink(Stream):
    """A response whose status and headers go out with its first piece."""

    headers: list[tuple[bytes, bytes]] = field(factory=list, kw_only=True)
    _head: Message | None = field(default=None, init=False)

    @classmethod
    def of(cls, send: Send, request_id: str, direct: Callable[[bytes], bool] | None = None) -> "ResponseSink":
        """A response with the header X-Request-Id."""
        headers = [(b"x-request-id", request_id.encode("latin-1", "replace"))]
        return cls(send, direct=direct, headers=headers) if direct else cls(send, headers=headers)

    def fail(self, error: ApiError) -> None:
        """Answer with *error*, and nothing else."""
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
