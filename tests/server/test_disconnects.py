"""A client that goes leaves nothing behind."""

import asyncio
import json

from ksim.server.http.application import Application
from tests.server.talk import client

SLOW = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}


def test_a_client_that_goes_leaves_nothing_behind():
    """Before its body has come, before its first token, and in the middle of a stream."""
    async def go():
        async with client(speed=1.0) as (_, application):
            body = json.dumps({**SLOW, "stream": True}).encode()
            whole = {"type": "http.request", "body": body, "more_body": False}
            for messages in ([{"type": "http.request", "body": body[:5], "more_body": True}], [whole], [whole]):
                await _visit(application, [*messages, {"type": "http.disconnect"}])
            assert not application.api.live.handles
    asyncio.run(go())


async def _visit(application: Application, messages):
    waiting = iter(messages)

    async def receive():
        await asyncio.sleep(0)
        return next(waiting)

    async def send(_):
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "root_path": "",
             "headers": [(b"content-type", b"application/json")]}
    await application(scope, receive, send)
