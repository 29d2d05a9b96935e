"""A server within the test's process, whose simulated time passes a million times as fast as the clock."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx

from ksim.scenario.scenario import Scenario
from ksim.server.http.application import Application
from ksim.server.live import Live
from ksim.server.openai.api import Api
from ksim.server.openai.kinds import ServedModel
from ksim.server.sglang_api import SglangApi
from ksim.server.sglang_metrics import SglangMeter
from ksim.server.text import MadeUpTokenizer
from ksim.simulation.fleet import Fleet

SCENARIO = {
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 256},
    "workload": {"synthetic": {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 10},
                               "output": {"kind": "uniform", "low": 3, "high": 9}}}}
SGLANG = {**SCENARIO, "engine": "sglang-0.5.8", "serve": {"sglang": {"context_length": 256}}}
HELLO = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def client(scenario=SCENARIO, tokenizer=None, speed=1e6, tells_cached=False, **options):
    """A client of a server that is there, and the server's application and fleet."""
    live = Live(Fleet.of(Scenario.of(scenario)), speed)
    served = ServedModel.of(live.fleet)
    application = Application(**options)
    application.api = Api(live, served, tokenizer or MadeUpTokenizer(served.vocabulary), clock=lambda: 7.0,
                          tells_cached=tells_cached)
    if served.sglang:
        meter = SglangMeter(live, "mine")
        application.answer_as(SglangApi(application.api, meter, "its/tokenizer"))
        application.metrics = meter.text
    playing = asyncio.create_task(live.run())
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://ksim") as made:
        yield made, application
    live.drain()
    await playing
    assert not live.handles


def talk(*calls, headers=None, **server):
    """The answers to POSTs of these pairs of a path and a body, or to GETs of paths alone."""
    async def all_of_them():
        async with client(**server) as (made, _):
            return [await (made.get(call, headers=headers) if isinstance(call, str) else
                           made.post(call[0], json=call[1], headers=headers)) for call in calls]
    return asyncio.run(all_of_them())


def ask(path, headers=None, server=None, **body):
    """The answer to one POST."""
    (answer,) = talk((path, body), headers=headers, **(server or {}))
    return answer


def post(content, path="/v1/completions", kind="application/json"):
    """The answers to a POST of these bytes, and to a sound one after it."""
    async def both():
        async with client() as (made, _):
            return [await made.post(path, content=content, headers={"content-type": kind}),
                    await made.post(path, json={"prompt": "a"})]
    return asyncio.run(both())


def complete(**body):
    """The JSON of a completion."""
    answer = ask("/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(**body):
    """The JSON of a chat."""
    answer = ask("/v1/chat/completions", **{"messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def generate(**body):
    """The JSON that SGLang's /generate answers."""
    answer = ask("/generate", server={"scenario": SGLANG}, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(answer):
    """The chunks of a stream, which ends as it should."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, nothing = answer.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error(path, **body):
    """The status and the error that a POST gets."""
    answer = ask(path, **body)
    told = answer.json()["error"]
    assert told["code"] == answer.status_code >= 400
    return answer.status_code, told
