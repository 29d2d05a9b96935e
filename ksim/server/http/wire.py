"""uvicorn's side of a request: when its last byte came, and the transport that takes the tokens of its stream."""

from time import perf_counter

from attrs import frozen
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["TimedProtocol", "Wire"]


class TimedProtocol(HttpToolsProtocol):
    """Notes in the state of each request when its last byte `came`, and gives it a `wire`."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.scope["state"]["wire"] = Wire(self.cycle)

    def on_message_complete(self) -> None:
        self.scope["state"]["came"] = perf_counter()
        super().on_message_complete()


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
