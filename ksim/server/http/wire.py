"""uvicorn's side of a request: when its last byte came, and the socket that takes the tokens of its stream."""

import os
from time import perf_counter

from attrs import frozen
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["TimedProtocol", "Wire"]


class TimedProtocol(HttpToolsProtocol):
    """Notes in the state of each request when its last byte `came`, and gives it a `wire`."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["method"] == "POST":
            self.scope["state"]["wire"] = Wire(self.cycle, self.transport.get_extra_info("socket").fileno())

    def on_message_complete(self) -> None:
        self.scope["state"]["came"] = perf_counter()
        super().on_message_complete()


@frozen
class Wire:
    """Writes a response of uvicorn's past ASGI, which costs as much as the write itself.

    `file` is the number of the socket.
    """

    cycle: RequestResponseCycle
    file: int

    def write(self, piece: bytes) -> bool:
        """Send a *piece* of a response that has begun and goes on; return False where ASGI is to do that."""
        cycle = self.cycle
        transport = cycle.transport
        if not cycle.chunked_encoding or cycle.flow.write_paused or transport.is_closing():
            return False
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        if transport.get_write_buffer_size():
            transport.write(chunk)
            return True
        try:
            sent = os.write(self.file, chunk)
        except OSError:  # the buffer of the socket is full, or the client has gone: the transport finds out
            sent = 0
        if sent < len(chunk):
            transport.write(chunk[sent:])
        return True
