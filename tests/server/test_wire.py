"""Limits of what clients send, at the sockets of uvicorn: too large a head, half a request, too long a body."""

import asyncio
import http.client
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from ksim.server.http import wire
from ksim.server.http.application import Application
from ksim.server.http.wire import TimedProtocol

POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def served():
    """The port of a server that is still starting, for bodies of at most 100,000 bytes."""
    config = uvicorn.Config(Application(max_body=100_000), lifespan="off", ws="none", log_config=None)
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: TimedProtocol(config, state, {}), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answer_to(*pieces):
    """The status and the error that a client gets which sends these pieces, and then waits; nothing without one."""
    async def go():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            try:
                said = await reader.read()
            finally:
                writer.close()
            return said
    said = asyncio.run(go())
    if not said:
        return None
    head, _, body = said.partition(b"\r\n\r\n")
    told = json.loads(body)["error"]
    assert told["code"] == int(head.split()[1])
    return told["code"], told["message"]


def test_a_head_has_at_most_so_many_bytes():
    piece = b"x" * 500_000
    assert answer_to(b"GET /health HTTP/1.1\r\nx: ", *[piece] * 9) == (
        431, "The head of a request has at most 4,194,304 bytes")


def test_a_request_has_at_most_so_many_headers():
    lines = b"".join(b"x%d: 1\r\n" % number for number in range(258))
    assert answer_to(b"GET /health HTTP/1.1\r\n" + lines) == (431, "A request has at most 256 headers")


def test_trailers_are_headers_too():
    lines = b"".join(b"x%d: 1\r\n" % number for number in range(258))
    assert answer_to(POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + lines)[0] == 431


def test_what_is_no_http_is_refused_in_vllms_shape():
    assert answer_to(b"\0\1\2\r\n\r\n") == (400, "Invalid HTTP request received.")


@pytest.mark.parametrize("sent", [
    b"GET /health HTT", b"GET /health HTTP/1.1\r\nhost: a\r\n", POST + b"content-length: 9\r\n\r\n",
    POST + b"content-length: 9\r\n\r\n{", POST + b"transfer-encoding: chunked\r\n\r\n"], ids=repr)
def test_half_a_request_is_not_waited_for(monkeypatch, sent):
    monkeypatch.setattr(wire, "HEAD_TIMEOUT", 0.01)
    monkeypatch.setattr(wire, "BODY_TIMEOUT", 0.01)
    assert answer_to(sent) == (408, "The request did not come within 0.01 s")


def test_a_client_that_only_breaks_lines_after_an_answer_is_left(monkeypatch):
    monkeypatch.setattr(wire, "HEAD_TIMEOUT", 0.01)

    async def go():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            said = await reader.read()
            writer.close()
            return said
    assert b" 408 " in asyncio.run(go())


def test_a_client_that_says_nothing_is_left(monkeypatch):
    monkeypatch.setattr(wire, "HEAD_TIMEOUT", 0.01)
    assert answer_to() is None


def test_a_client_that_sends_all_of_too_long_a_body_reads_the_413():
    def ask(port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/completions", b" " * 8_000_000, {"content-type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        return status

    async def go():
        async with served() as port:
            return await asyncio.to_thread(ask, port)
    assert asyncio.run(go()) == 413


def test_an_endless_body_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(wire, "LINGERING_TIME", 0.02)

    async def go():
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(POST + b"content-length: 1000000000000\r\n\r\n")
            head = await reader.readuntil(b"\r\n")
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(b" " * 10_000)
                    await writer.drain()
            return head
    assert b" 413 " in asyncio.run(go())
