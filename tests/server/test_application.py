"""Who may ask, where, and what is answered while a server starts, drains or refuses, or a client goes."""

import asyncio
import json

import httpx
import pytest

from ksim.flow.events import Admitted
from ksim.server.text import MadeUpTokenizer
from tests.server.talk import HELLO, SCENARIO, ask, client, talk

ADAPTERS = {**SCENARIO, "serve": {"max_model_len": 256, "enable_lora": True,
                                  "lora_modules": [{"name": "sql", "rank": 16}, {"name": "law", "rank": 8}]}}
BUSY = {**SCENARIO, "flow_control": {"name": "queue_limit", "max_requests": 0, "metrics_staleness_threshold": "1 ns"}}
SLOW = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}


def test_a_key_is_asked_for_where_the_api_is():
    for key, status in ((None, 401), ("Bearer no", 401), ("Basic yes", 401), ("bearer yes", 200)):
        headers = {"authorization": key} if key else {}
        answers = talk(("/v1/completions", {"prompt": "a"}), "/v1/models", "/health", headers=headers,
                       keys=["other", "yes"])
        assert [answer.status_code for answer in answers] == [status, status, 200]
        if status == 401:
            assert answers[0].json() == {"error": "Unauthorized"}


def test_models_are_the_base_model_and_its_adapters():
    listed, one, unknown = talk("/v1/models", "/v1/models/sql", "/v1/models/none", scenario=ADAPTERS)
    assert [(card["id"], card["parent"], card["max_model_len"]) for card in listed.json()["data"]] == [
        ("llama-3.2-1b", None, 256), ("sql", "llama-3.2-1b", None), ("law", "llama-3.2-1b", None)]
    assert one.json()["id"] == "sql"
    assert unknown.status_code == 404


def test_an_adapter_answers_under_its_name():
    answer = ask("/v1/completions", server={"scenario": ADAPTERS}, prompt="a", model="sql")
    assert answer.json()["model"] == "sql"


def test_a_version_names_the_release_and_ksim():
    assert talk("/version")[0].json()["version"].startswith("0.33+ksim.")


@pytest.mark.parametrize("way", ["declared", "sent"])
def test_a_body_that_is_too_large_is_not_read(way):
    async def send():
        async with client(max_body=1000) as (made, _):
            body = json.dumps({"prompt": "a" * 2000}).encode()
            headers = {"content-type": "application/json"}
            return [await made.post(path, content=body if way == "declared" else _parts(body), headers=headers)
                    for path in ("/v1/completions", "/tokenize")]
    for answer in asyncio.run(send()):
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == 413


async def _parts(body):
    for at in range(0, len(body), 100):
        yield body[at:at + 100]


def test_clients_are_told_to_wait_until_there_is_a_fleet():
    async def look():
        async with client() as (made, application):
            application.api, api = None, application.api
            before = [await made.get("/health"), await made.get("/v1/models"),
                      await made.post("/v1/completions", json={"prompt": "a"})]
            application.api = api
            return before, await made.get("/health")
    before, after = asyncio.run(look())
    assert [answer.status_code for answer in before] == [503, 503, 503]
    assert before[2].json()["error"]["type"] == "Service Unavailable"
    assert after.status_code == 200


def test_who_comes_while_the_server_drains_is_sent_away_and_others_are_served():
    async def drain():
        async with client(speed=1e3) as (made, application):
            asked = await under_way(made, application)
            application.draining = True
            refused = await made.post("/v1/completions", json=SLOW)
            return refused, await asked, await made.get("/health")
    refused, served, health = asyncio.run(drain())
    assert (refused.status_code, served.status_code, health.status_code) == (503, 200, 503)
    assert served.json()["usage"]["completion_tokens"] == 200


async def under_way(made, application):
    """The task of a request that is in flight."""
    asked = asyncio.create_task(made.post("/v1/completions", json=SLOW))
    while not application.api.live.handles:
        await asyncio.sleep(0)
    return asked


def test_load_is_how_many_requests_are_in_flight():
    async def look():
        async with client(speed=1e3) as (made, application):
            asked = await under_way(made, application)
            during = await made.get("/load")
            await asked
            return during.json(), (await made.get("/load")).json()
    assert asyncio.run(look()) == ({"server_load": 1}, {"server_load": 0})


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_refuses_answers_429(stream):
    call = "/v1/completions", {"prompt": "a", "stream": stream}
    _, answer = talk(call, call, scenario=BUSY)  # at the beginning, metrics are not stale
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "Too Many Requests"


def test_a_request_that_no_engine_can_serve_is_refused():
    small = {**SCENARIO, "serve": {"max_model_len": 256, "num_gpu_blocks_override": 17, "max_logprobs": 1}}
    answer = ask("/v1/completions", server={"scenario": small}, prompt="a", use_beam_search=True, n=3)
    assert answer.status_code == 400
    assert "max_logprobs" in answer.json()["error"]["message"]


def test_what_was_computed_before_is_a_prefix_hit():
    """Also what was answered, and not for another salt or adapter."""
    async def play():
        async with client() as (made, application):
            hits = list[int]()
            application.api.live.log.subscribe(Admitted, lambda event: hits.append(event.cached))
            first = {"prompt": [*range(64)], "max_tokens": 64, "ignore_eos": True, "return_token_ids": True}
            choice = (await made.post("/v1/completions", json=first)).json()["choices"][0]
            again = {**first, "prompt": [*range(64), *choice["token_ids"], 1, 2, 3]}
            await made.post("/v1/completions", json=again)
            await made.post("/v1/completions", json={**again, "cache_salt": "mine"})
            chat = {"messages": HELLO * 8, "max_tokens": 64, "ignore_eos": True}
            said = (await made.post("/v1/chat/completions", json=chat)).json()["choices"][0]["message"]["content"]
            more = [*HELLO * 8, {"role": "assistant", "content": said}, *HELLO]
            await made.post("/v1/chat/completions", json={**chat, "messages": more})
            return hits
    assert asyncio.run(play()) == [0, 112, 0, 0, 96]


def test_tokens_and_texts_are_what_requests_are_counted_by():
    tokenized, detokenized, chat, refused, missing = talk(
        ("/tokenize", {"prompt": "Hello there, you", "return_token_strs": True}),
        ("/detokenize", {"tokens": [1, 2, 3]}), ("/tokenize", {"messages": HELLO}),
        ("/detokenize", {"tokens": [10**7]}), ("/tokenize", {}))
    assert tokenized.json()["count"] == len(tokenized.json()["tokens"]) == len(tokenized.json()["token_strs"]) == 4
    assert tokenized.json()["max_model_len"] == 256
    assert detokenized.json() == {"prompt": "of and to"}
    assert chat.json()["count"] == 6
    assert (refused.status_code, missing.status_code) == (400, 400)


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


async def _visit(application, messages):
    waiting = iter(messages)

    async def receive():
        await asyncio.sleep(0)
        return next(waiting)

    async def send(_):
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "root_path": "",
             "headers": [(b"content-type", b"application/json")]}
    await application(scope, receive, send)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_a_fault_of_the_server_has_vllms_shape_and_others_are_answered(path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a fault")

    async def both():
        async with client() as (made, application):
            transport = httpx.ASGITransport(application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ksim") as tolerant:
                with monkeypatch.context() as patched:
                    patched.setattr(MadeUpTokenizer, "encode", fail)
                    failed = await tolerant.post(path, json={"prompt": "a"})
                return failed, await made.post(path, json={"prompt": "a"})
    failed, sound = asyncio.run(both())
    assert failed.json()["error"] == {"message": "Internal server error", "type": "InternalServerError", "param": None,
                                      "code": 500}
    assert (failed.status_code, sound.status_code) == (500, 200)
