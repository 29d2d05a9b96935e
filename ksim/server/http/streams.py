"""Responses written piece by piece from within the event loop, without a task that wakes up for each piece."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from attrs import define, field

from ksim.server.http.asgi import Receive, Send

__all__ = ["Stream", "disconnection"]

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
