"""Streams that are written without tasks, and clients that read too slowly."""

import asyncio

import pytest

from ksim.server.http import streams
from ksim.server.http.streams import Stream, disconnection


class Client:
    """An ASGI server's side of a response: it takes messages while it is not paused."""

    def __init__(self):
        self.taken, self.gone, self.ready = [], asyncio.Event(), asyncio.Event()
        self.ready.set()

    async def send(self, message):
        await self.ready.wait() if not self.ready.is_set() else None
        self.taken.append((message["body"], message["more_body"]))
        if not message["more_body"]:
            self.gone.set()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


def played(scene):
    asyncio.run(scene())


def test_pieces_are_sent_before_write_returns():
    async def scene():
        client = Client()
        stream = Stream(client.send)
        stream.write(b"a")
        assert client.taken == [(b"a", True)]
        stream.write(b"b", last=True)
        stream.write(b"too late")
        assert client.taken[1:] == [(b"b", False)]
        assert await stream.until_over(disconnection(client.receive))
    played(scene)


def test_a_slow_client_gets_all_pieces_in_order_once_it_reads():
    async def scene():
        client = Client()
        stream = Stream(client.send)
        stream.write(b"a")
        client.ready.clear()
        for piece in (b"b", b"c", b"d"):
            stream.write(piece)
            await asyncio.sleep(0)
        stream.write(b"e", last=True)
        assert client.taken == [(b"a", True)]
        client.ready.set()
        assert await stream.until_over(disconnection(client.receive))
        assert client.taken == [(b"a", True), (b"b", True), (b"cde", False)]
    played(scene)


def test_a_stream_goes_on_without_a_task_after_its_client_has_caught_up():
    async def scene():
        client = Client()
        stream = Stream(client.send)
        client.ready.clear()
        stream.write(b"a")
        client.ready.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream.write(b"b")
        assert client.taken == [(b"a", True), (b"b", True)]
    played(scene)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch):
    async def scene():
        cut, client = [], Client()
        stream = Stream(client.send, lambda: cut.append(True))
        client.ready.clear()
        for _ in range(5):
            stream.write(b"12345")
        assert cut == [True]
        assert not await stream.until_over(disconnection(client.receive))
    monkeypatch.setattr(streams, "LIMIT", 12)
    played(scene)


def test_a_client_that_has_gone_ends_the_wait():
    async def scene():
        client = Client()
        stream = Stream(client.send)
        stream.write(b"a")
        client.gone.set()
        assert not await stream.until_over(disconnection(client.receive))
        stream.write(b"b")
        assert client.taken == [(b"a", True)]
        assert len(asyncio.all_tasks()) == 1
    played(scene)


def test_errors_of_a_send_that_waits_are_thrown_where_it_is_awaited():
    async def failing():
        await asyncio.sleep(0)
        raise OSError("broken pipe")

    async def scene():
        rest = streams._begin(failing())
        with pytest.raises(OSError, match="broken pipe"):
            await rest
    played(scene)
