"""uvicorn's side of a request: its limits, when its last byte came, and the transport that takes its tokens."""

import asyncio
from time import perf_counter
from typing import Any

from attrs import frozen
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ksim.server.errors import ApiError
from ksim.server.openai.reply import to_json

__all__ = ["TimedProtocol", "Wire"]

#: vLLM's defaults of --h11-max-incomplete-event-size, in bytes, and --h11-max-header-count.
MAX_EVENT, MAX_HEADERS = 2**22, 256
#: nginx's defaults of client_header_timeout, client_body_timeout and lingering_time, in seconds: for a whole head, for
#: the next piece of a body, and for a body that nobody waits for, because it has been answered.
HEAD_TIMEOUT, BODY_TIMEOUT, LINGERING_TIME = 60.0, 60.0, 30.0


class TimedProtocol(HttpToolsProtocol):
    """Limits how large the head of a request is, and how long it takes to come.

    It notes in the state of each request when its last byte `came`, and gives it a `wire`.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._incomplete = 0  # bytes that are neither of a body nor of a head that is complete
        self._deadline: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(HEAD_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._incomplete += len(data)
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete:
            self._expect(HEAD_TIMEOUT)  # uvicorn's own ends with the first byte
        super().data_received(data)
        if self._incomplete > MAX_EVENT:
            self._refuse(431, f"The head of a request has at most {MAX_EVENT:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect(HEAD_TIMEOUT)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse(431, f"A request has at most {MAX_HEADERS} headers")
            raise ValueError("too many headers")  # the parser stops

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._incomplete = 0
        self._expect(BODY_TIMEOUT)
        self.scope["state"]["wire"] = Wire(self.cycle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._incomplete = 0
        if not self.cycle.response_complete:
            self._expect(BODY_TIMEOUT)

    def on_message_complete(self) -> None:
        self._incomplete = 0
        self._expect(None)
        self.scope["state"]["came"] = perf_counter()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and self.cycle.response_complete:  # what still comes is dropped
            self._expect(LINGERING_TIME)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, msg)

    def shutdown(self) -> None:
        """Close the connection, after its answer."""
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    # Limits.

    def _expect(self, seconds: float | None) -> None:
        """Give the client so many *seconds* for what comes next, or any time."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._too_late, seconds) if seconds is not None else None

    def _too_late(self, seconds: float) -> None:
        if self.flow.read_paused:  # the server lets it wait
            self._expect(seconds)
        elif self._refused or (self.cycle is None and not self._incomplete):  # it has said nothing
            self.transport.close()
        else:
            self._refuse(408, f"The request did not come within {seconds:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless an answer is on its way, and let the client read it: drop what still comes."""
        if self._refused or self.transport.is_closing():
            return
        cycle, self._refused = self.cycle, True
        if self.pipeline or not (cycle is None or cycle.response_complete or not cycle.response_started):
            self.transport.close()
            return
        body = to_json(ApiError(message, status).body)
        self.transport.write(b"".join((
            STATUS_LINE[status], b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body), body)))
        self.transport.write_eof()
        self._expect(LINGERING_TIME)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()


@frozen
class Wire:
    """Writes the response of a `cycle` of uvicorn's past ASGI, whose coroutine takes as long as the write itself."""

    cycle: RequestResponseCycle

    def write(self, piece: bytes) -> bool:
        """Send a *piece* of a response that has begun and goes on; return False where ASGI is to do that."""
        cycle = self.cycle
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True
