"""A server that has answered hundreds of requests holds no more than one that has answered a few."""

import asyncio
import gc
import json
from collections import Counter

from ksim.server.http.application import Application
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.metrics import Meter
from ksim.server.openai.api import Api
from ksim.server.openai.kinds import ServedModel
from ksim.server.text import MadeUpTokenizer
from tests.server.fake import FakeLive

SCENARIO = {
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "router": "prefix_aware",
    "serve": {"max_model_len": 256, "num_gpu_blocks_override": 20, "data_parallel_size": 2},
    "flow_control": {"name": "queue_limit"},
    "workload": {"synthetic": {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 10},
                               "output": {"kind": "fixed", "value": 3}}}}


def test_nothing_is_left_of_hundreds_of_requests():
    fake = FakeLive(SCENARIO)
    fake.live.log.kept = None
    meter, served = Meter(fake.live, "m"), ServedModel.of(fake.live.fleet)
    application = Application(api=Api(fake.live, served, MadeUpTokenizer(served.vocabulary), on_abort=meter.aborted,
                                      tells_cached=True))
    app = HttpMetrics(application, application.paths)

    async def go():
        await ask(app, fake, 100)
        before = held(meter)
        await ask(app, fake, 500)
        more = held(meter) - before  # asyncio keeps a few
        assert more.total() < 250, more.most_common(10)
    gc.freeze()  # what other tests have made is not counted: it may be a million objects
    asyncio.run(go())


def held(meter):
    """How many objects there are of each kind."""
    meter.text()
    gc.collect()
    return Counter(type(kept).__name__ for kept in gc.get_objects())


async def ask(app, fake, count):
    """Send so many requests; every fifth client goes at once, others get all of a stream, or of a whole answer."""
    for number in range(count):
        body = {"prompt": f"tell me of {number % 50}", "stream": number % 2 == 0, "user": str(number % 7)}
        parts, ended = [json.dumps(body).encode()], asyncio.Event()

        async def receive(parts=parts, ended=ended):
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message, ended=ended):
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                ended.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/completions",
                 "headers": [(b"content-type", b"application/json")]}
        task = asyncio.create_task(app(scope, receive, send))
        while not fake.live.handles and not task.done():
            await asyncio.sleep(0)
        if number % 5 == 0:
            ended.set()
            await task
        fake.until(fake.time + 10.0)
        await task
