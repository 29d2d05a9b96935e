"""Clients that go when it suits them, send half a request, nonsense or too much, or do not read: nothing is left.

`python -m benchmarks.disconnects` does the same to a server of its own, by ten thousand sockets.
"""

import asyncio
import json
import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from attrs import define, field

from ksim.server.http.application import Application
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.metrics import Meter
from ksim.server.openai.api import Api
from ksim.server.openai.kinds import ServedModel
from ksim.server.text import MadeUpTokenizer
from tests.server.fake import FakeLive, values

SCENARIO = {
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline",
    "serve": {"max_model_len": 2048, "num_gpu_blocks_override": 400, "max_num_seqs": 16,
              "max_num_batched_tokens": 256},
    "workload": {"synthetic": {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 10},
                               "output": {"kind": "fixed", "value": 40}}}}
PATHS = ("/v1/completions", "/v1/chat/completions")


@define(eq=False)
class Visitor:
    """An ASGI client: sends `parts` of a body, the last of which is `whole` or not, and is there until it has `gone`.

    One that does not `read` never takes the first piece of its answer.
    """

    path: str
    parts: list[bytes]
    whole: bool = True
    reads: bool = True
    gone: asyncio.Event = field(factory=asyncio.Event)
    status: int = 0
    answer: bytes = b""
    ended: bool = False

    async def receive(self) -> dict[str, Any]:
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts) or not self.whole}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.answer += message.get("body", b"")
        if message["type"] == "http.response.body":
            if not self.reads:
                await asyncio.Event().wait()
            if not message.get("more_body", False):
                self.ended = True
                self.gone.set()  # uvicorn says so once an answer is complete

    def visit(self, app: HttpMetrics) -> "asyncio.Task[None]":
        """Ask *app*."""
        scope = {"type": "http", "method": "POST", "path": self.path, "raw_path": self.path.encode(),
                 "query_string": b"", "headers": [(b"content-type", b"application/json")]}
        return asyncio.create_task(app(scope, self.receive, self.send))


def whole(drawn: random.Random, **more: Any) -> tuple[str, bytes]:
    """A path and a body for it."""
    path, words = drawn.choice(PATHS), "word " * drawn.choice((3, 40, 900))
    asked = {"messages": [{"role": "user", "content": words}]} if "chat" in path else {"prompt": words}
    return path, json.dumps({**asked, "max_tokens": drawn.choice((1, 9, 200)), "stream": drawn.random() < 0.7,
                             "n": drawn.choice((1, 1, 1, 3)), **more}).encode()


def honest(drawn: random.Random) -> Visitor:
    path, body = whole(drawn)
    return Visitor(path, [body])


def in_pieces(drawn: random.Random) -> Visitor:
    path, body = whole(drawn)
    return Visitor(path, [body[place:place + 200] for place in range(0, len(body), 200)])


def half(drawn: random.Random) -> Visitor:
    path, body = whole(drawn)
    return Visitor(path, [body[:drawn.randrange(len(body))]], whole=False)


def nonsense(drawn: random.Random) -> Visitor:
    return Visitor(drawn.choice(PATHS), [drawn.choice((
        b"", b"{", b"[" * 5000, b"\xff\xfe", b"null", b"3", b'{"prompt": ' + b"9" * 5000 + b"}", b'{"prompt": {}}',
        b'{"prompt": "a", "max_tokens": -1}', b'{"prompt": "a", "max_tokens": 1e999}', b'{"messages": "a"}',
        b'{"prompt": "a", "model": "another"}', b'{"prompt": "a", "n": 1000000000}', drawn.randbytes(100)))])


def huge(drawn: random.Random) -> Visitor:
    return Visitor(drawn.choice(PATHS), [b" " * 5000] * 30)


def unreading(drawn: random.Random) -> Visitor:
    path, body = whole(drawn, stream=True)
    return Visitor(path, [body], reads=False)


KINDS: list[Callable[[random.Random], Visitor]] = [honest, honest, honest, in_pieces, half, nonsense, huge, unreading]


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_of_clients_that_go(seed: int) -> None:
    asyncio.run(_be_visited(random.Random(seed)))


async def _be_visited(drawn: random.Random) -> None:
    fake = FakeLive(SCENARIO)
    meter, served = Meter(fake.live, "m"), ServedModel.of(fake.live.fleet)
    application = Application(max_body=100_000)
    application.api = Api(fake.live, served, MadeUpTokenizer(served.vocabulary), on_abort=meter.aborted)
    app, before = HttpMetrics(application, application.paths), asyncio.all_tasks()
    visitors, tasks = list[Visitor](), list[asyncio.Task[None]]()
    for _ in range(150):
        visitors.append(drawn.choice(KINDS)(drawn))
        tasks.append(visitors[-1].visit(app))
        await _play(fake, drawn.randrange(12))
        if drawn.random() < 0.5:  # in the queue, in the middle of a prompt or of an answer, or when all is over
            drawn.choice(visitors).gone.set()
    for visitor in visitors:
        if not (visitor.ended or visitor.reads) or not visitor.whole:
            visitor.gone.set()
    while fake.live.handles:
        await _play(fake, 1)
    for visitor in visitors:
        visitor.gone.set()
    await asyncio.gather(*tasks)
    await _play(fake, 50)
    assert asyncio.all_tasks() == before
    _check_that_nothing_is_left(fake, meter)
    told = values(meter.text(*app.families))
    assert told["http_requests_total"] == len(visitors)
    assert told["ksim:requests_in_flight"] == told["vllm:num_requests_running"] == 0
    assert {visitor.status for visitor in visitors} <= {0, 200, 400, 404, 413}
    (last,) = await _ask(fake, app)
    assert last.status == 200 and last.ended


async def _play(fake: FakeLive, events: int) -> None:
    """Let so many moments pass at which something happens, and let everybody see it."""
    for _ in range(events):
        if fake.live.env.due < inf:
            fake.until(fake.live.env.due)
        await asyncio.sleep(0)
    for _ in range(6):
        await asyncio.sleep(0)


async def _ask(fake: FakeLive, app: HttpMetrics) -> list[Visitor]:
    """A client that asks after all of that."""
    visitor = Visitor(PATHS[0], [b'{"prompt": "Are you there?", "max_tokens": 3}'])
    task = visitor.visit(app)
    while not task.done():
        await _play(fake, 1)
    return [visitor]


def _check_that_nothing_is_left(fake: FakeLive, meter: Meter) -> None:
    live = fake.live
    assert not live.handles and meter.kept == 0
    for engine in live.engines:
        scheduler = engine.scheduler
        assert not len(scheduler.waiting) and not scheduler.running and not engine.outstanding and not engine._done
        assert scheduler.cache.pool.used == 0
