"""What a server of an SGLang engine answers: /generate and its errors, and what it tells of itself."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.server.http.application import Application
from tests.properties import examples
from tests.server.talk import HELLO, SGLANG, ask, chunks, client, generate, talk

ADAPTERS = {**SGLANG, "serve": {"sglang": {"context_length": 256}, "enable_lora": True,
                                "lora_modules": [{"name": "sql", "rank": 16}]}}
SHORT = {"max_new_tokens": 4, "ignore_eos": True}
OWN = ("/generate", "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/health_generate", "/ready",
       "/flush_cache", "/")


def both(scenario=SGLANG, **body):
    """The JSON of an answer as a whole, and the events of the same request to another such server, streamed."""
    whole = ask("/generate", server={"scenario": scenario}, **body)
    streamed = ask("/generate", server={"scenario": scenario}, **body, stream=True)
    return whole.json(), chunks(streamed)


def refused(**body):
    """The status and the JSON of an error."""
    answer = ask("/generate", server={"scenario": SGLANG}, **body)
    return answer.status_code, answer.json()


def test_an_answer_has_the_fields_of_sglang():
    told = generate(text="Hello there", sampling_params=SHORT, rid="mine")
    assert list(told) == ["text", "output_ids", "meta_info"]
    assert len(told["output_ids"]) == len(told["text"].split()) == 4
    meta = told["meta_info"]
    assert (meta["id"], meta["finish_reason"]) == ("mine", {"type": "length", "length": 4})
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 4, 0)
    assert 0 < meta["queue_time"] < meta["first_token_latency"] < meta["e2e_latency"]


PROMPTS = st.one_of(
    st.fixed_dictionaries({"text": st.sampled_from(["Hello", ["Hello"], ["Hello", "you there"]])}),
    st.fixed_dictionaries({"input_ids": st.sampled_from([[1, 2, 3], [[1, 2]], [[1], [2, 3], [4]]])}))
PARAMETERS = st.fixed_dictionaries({}, optional={
    "max_new_tokens": st.sampled_from([0, 1, 2, 7, 40, None]), "n": st.sampled_from([1, 2, None]),
    "ignore_eos": st.booleans(), "stream_interval": st.integers(1, 9), "min_new_tokens": st.just(0),
    "stop": st.sampled_from([None, "e", ["the", "q"]]), "stop_token_ids": st.just([5, 7]),
    "no_stop_trim": st.booleans(), "temperature": st.sampled_from([0, 0.5, 1])})


@given(prompt=PROMPTS, params=PARAMETERS, logged=st.booleans())
@examples(60)
def test_a_stream_ends_with_the_whole_answer(prompt, params, logged):
    whole, events = both(**prompt, sampling_params=params, return_logprob=logged, top_logprobs_num=2)
    given = next(iter(prompt.values()))
    batch = 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)
    alone, count = not (isinstance(given, list) and not isinstance(given[0], int)), batch * (params.get("n") or 1)
    assert isinstance(whole, dict) == (alone and count == 1)
    outputs = [whole] if isinstance(whole, dict) else whole
    assert len(outputs) == count
    for number, output in enumerate(outputs):
        own = [event for event in events if event.get("index", 0) == number]
        assert ("index" in own[0]) == isinstance(whole, list)
        _check_stream(own, output, params.get("stream_interval", 1))
        _check_meta(output, params, logged)


def _check_stream(events, output, interval):
    """What has come stays, and grows by the interval until the end."""
    last = {key: value for key, value in events[-1].items() if key != "index"}
    assert {**last["meta_info"], "queue_time": 0} == {**output["meta_info"], "queue_time": 0}
    assert (last["text"], last["output_ids"]) == (output["text"], output["output_ids"])
    counts = [len(event["output_ids"]) for event in events]
    assert counts[:-1] == [*range(1, counts[-1], interval)][:len(counts) - 1]
    for before, after in pairwise(events):
        assert before["meta_info"]["finish_reason"] is None
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][:len(before["output_ids"])] == before["output_ids"]


def _check_meta(output, params, logged):
    meta, ids = output["meta_info"], output["output_ids"]
    assert meta["completion_tokens"] == len(ids)
    reason, most = meta["finish_reason"], params.get("max_new_tokens", 128)
    assert most is None or len(ids) <= most
    assert reason in ({"type": "length", "length": len(ids)}, {"type": "stop", "matched": reason.get("matched")})
    if logged:
        assert [number for _, number, _ in meta["output_token_logprobs"]] == ids
        assert all(len(places) == 2 and places[0][1] == number
                   for places, number in zip(meta["output_top_logprobs"], ids, strict=True))


def test_an_answer_that_ends_by_itself_is_as_long_as_the_workload_says():
    told = generate(text="Hello", sampling_params={"max_new_tokens": 100})
    assert 3 <= told["meta_info"]["completion_tokens"] <= 9
    assert told["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_stop_string_is_cut_off_unless_it_is_to_be_shown():
    words = generate(text="Hello", sampling_params=SHORT)["text"].split()
    params = {**SHORT, "stop": words[2]}
    told, shown = (generate(text="Hello", sampling_params={**params, "no_stop_trim": keeps}) for keeps in (False, True))
    assert told["text"].split() == words[:2]
    assert shown["text"].split() == words[:3]
    assert len(told["output_ids"]) == 3
    assert told["meta_info"]["finish_reason"] == {"type": "stop", "matched": words[2]}


def test_log_probabilities_of_a_prompt_begin_where_they_are_asked_for():
    meta = generate(input_ids=[*range(10)], sampling_params=SHORT, return_logprob=True, logprob_start_len=6,
                    return_text_in_logprobs=True)["meta_info"]
    assert [number for _, number, _ in meta["input_token_logprobs"]] == [6, 7, 8, 9]
    assert meta["input_token_logprobs"][0][0] is None and meta["input_token_logprobs"][1][0] < 0
    assert all(isinstance(said, str) for *_, said in meta["output_token_logprobs"])
    assert "output_top_logprobs" not in meta


def test_ids_of_prompts_are_given_back():
    told = generate(input_ids=[[1, 2], [3]], sampling_params=SHORT, rid="r", return_prompt_token_ids=True)
    assert [one["prompt_token_ids"] for one in told] == [[1, 2], [3]]
    assert [one["meta_info"]["id"] for one in told] == ["r_0", "r_1"]


def test_the_cache_is_found_and_flushed_once_engines_are_idle():
    prompt = {"input_ids": [*range(64)], "sampling_params": SHORT}

    async def play():
        async with client(scenario=SGLANG) as (made, _):
            cached = [(await made.post("/generate", json=prompt)).json()["meta_info"]["cached_tokens"]
                      for _ in range(2)]
            flushed = await made.post("/flush_cache", params={"timeout": 30})
            return [*cached, flushed.status_code,
                    (await made.post("/generate", json=prompt)).json()["meta_info"]["cached_tokens"]]
    assert asyncio.run(play()) == [0, 63, 200, 0]


@pytest.mark.parametrize(("model", "own"), [
    ("llama-3.2-1b", {}), ("llama-3.2-1b", {"disable_radix_cache": True}),
    ("llama-3.2-1b", {"max_total_tokens": 300}),
    ("gemma-3-1b", {}), ("gpt-oss-20b", {})])
def test_a_flush_leaves_all_of_the_pool_free(model, own):
    scenario = {**SGLANG, "model": model, "serve": {"sglang": {"context_length": 256, **own}}}

    async def play():
        async with client(scenario=scenario) as (made, application):
            for start in range(3):
                await made.post("/generate", json={"input_ids": [*range(start, start + 50)], "sampling_params": SHORT})
            pool = application.api.live.engines[0].scheduler.cache.pool
            free = pool.free
            assert (await made.get("/flush_cache")).status_code == 200
            assert (pool.free, pool.used) == (free, 0)
            again = await made.post("/generate", json={"input_ids": [*range(50)], "sampling_params": SHORT})
            return again.json()["meta_info"]["cached_tokens"]
    assert asyncio.run(play()) == 0


def test_a_flush_is_refused_while_requests_run():
    async def play():
        async with client(scenario=SGLANG, speed=1e3) as (made, application):
            asked = asyncio.create_task(made.post("/generate", json={
                "text": "a", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}))
            while not application.api.live.handles:
                await asyncio.sleep(0)
            told = await made.post("/flush_cache")
            await asked
            return told.status_code
    assert asyncio.run(play()) == 400


def test_a_wrong_timeout_is_refused():
    (answer,) = talk("/flush_cache?timeout=soon", scenario=SGLANG)
    assert (answer.status_code, answer.json()["object"]) == (400, "error")


@pytest.mark.parametrize(("body", "says"), [
    ({}, "Either text, input_ids or input_embeds should be provided."),
    ({"input_ids": []}, "input_ids cannot be empty."), ({"input_ids": [[]]}, "input_ids cannot be empty."),
    ({"input_ids": [10**9]}, "Token id 1000000000 is out of vocabulary"),
    ({"input_ids": [*range(300)]}, "The input (300 tokens) is longer than the model's context length (256 tokens)."),
    ({"input_ids": [*range(252)], "sampling_params": {"max_new_tokens": 1}},
     "Input length (252 tokens) exceeds the maximum allowed length (250 tokens)."),
    ({"text": "a", "sampling_params": {"max_new_tokens": 256}},
     "Requested token count exceeds the model's maximum context length of 256 tokens."),
    ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p must be in (0, 1], got 0."),
    ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature must be a non-negative finite number, got -1"),
    ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0, got -1."),
    ({"text": "a", "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 4}},
     "min_new_tokens must be in [0, max_new_tokens(3)], got 4."),
    ({"text": "a", "sampling_params": {"n": 10**9}}, "The request has 1,000,000,000 sequences"),
    ({"text": "a", "lora_path": "sql"}, "LoRA adapter 'sql' was requested, but LoRA is not enabled."),
    ({"text": ["a", "b"], "rid": ["c"]}, "The specified rids length mismatch with the batch_size"),
    ({"text": ["a", "b"], "rid": ["c", "c"]}, "Duplicate request IDs detected within the request: ['c']"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "The length of sampling_params should be equal"),
    ({"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, "The parallel_sample_num should be the same"),
    ({"text": "a", "image_data": "x.png"}, "image_data is not simulated in /generate"),
])
def test_what_cannot_be_answered_is_refused_as_sglang_does(body, says):
    status, told = refused(**body)
    assert status == 400 and list(told) == ["error"] and list(told["error"]) == ["message"]
    assert told["error"]["message"].startswith(says)
    answer = ask("/generate", server={"scenario": SGLANG}, **body, stream=True)
    (event,) = chunks(answer)
    assert event["error"] == {"message": told["error"]["message"], "type": "invalid_request_error", "code": 400,
                              "retryable": False}


@pytest.mark.parametrize(("params", "says"), [
    ({"max_tokens": 1}, "unknown field `max_tokens`, expected one of `max_new_tokens`, "),
    ({"max_new_tokens": "5"}, 'invalid type: string "5", expected i64'),
    ({"max_new_tokens": 1.5}, "invalid type: floating point `1.5`, expected i64"),
    ({"ignore_eos": 1}, "invalid type: integer `1`, expected a boolean"),
    ({"stop": [None]}, "invalid type: null, expected a string"),
    ({"stop": 1}, "invalid type: integer `1`, expected a value or an array of values for StringOrList"),
    ({"stop_token_ids": True}, "invalid type: boolean `true`, expected a sequence"),
    ({"logit_bias": {"1": []}}, "invalid type: sequence, expected f64"),
])
def test_sampling_parameters_of_wrong_types_get_the_words_of_the_schema(params, says):
    status, told = refused(text="a", sampling_params=params)
    assert status == 400 and list(told) == ["error"] and told["error"].startswith(says)


def test_other_errors_are_flat():
    wrong, unknown, path = talk(("/generate", {"text": 1}), ("/v1/completions", {"prompt": "a", "model": "no"}),
                                "/nothing", scenario=SGLANG)
    for answer, status in ((wrong, 400), (unknown, 404)):
        assert answer.status_code == answer.json()["code"] == status
        assert list(answer.json()) == ["object", "message", "type", "param", "code"]
    assert (path.status_code, path.json()) == (404, {"detail": "Not Found"})


def test_an_id_in_flight_is_not_taken_twice():
    async def play():
        body = {"text": "a", "rid": "mine", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        async with client(scenario=SGLANG, speed=1e3) as (made, application):
            first = asyncio.create_task(made.post("/generate", json=body))
            while not application.api.live.handles:
                await asyncio.sleep(0)
            second = await made.post("/generate", json=body)
            await first
            return second.json(), (await made.post("/generate", json=body)).status_code
    told, third = asyncio.run(play())
    assert told == {"error": {"message": "Duplicate request ID detected: mine"}} and third == 200


def test_an_adapter_is_a_lora_path():
    call = {"text": ["a", "b"], "lora_path": [None, "sql"], "sampling_params": SHORT}
    good, bad = talk(("/generate", call), ("/generate", {**call, "lora_path": "law"}), scenario=ADAPTERS)
    assert good.status_code == 200
    assert bad.json()["error"]["message"].startswith("Got LoRA adapter that has never been loaded: law")


def test_a_gateway_that_refuses_answers_429():
    busy = {**SGLANG, "flow_control": {"name": "queue_limit", "max_requests": 0,
                                       "metrics_staleness_threshold": "1 ns"}}
    call = "/generate", {"text": "a", "stream": True}
    _, answer = talk(call, call, scenario=busy)  # at the beginning, metrics are not stale
    assert (answer.status_code, answer.json()["code"]) == (429, 429)


def test_a_server_tells_what_it_serves():
    model, server, cards = (answer.json() for answer in talk("/get_model_info", "/server_info", "/v1/models",
                                                            scenario=SGLANG))
    assert (model["model_path"], model["is_generation"]) == ("llama-3.2-1b", True)
    assert model["tokenizer_path"] == server["tokenizer_path"] == "its/tokenizer"
    assert server["version"].startswith("0.5.8+ksim.")
    assert (server["context_length"], server["page_size"], server["tp_size"]) == (256, 1, 1)
    (state,) = server["internal_states"]
    assert state["memory_usage"]["token_capacity"] == server["max_total_num_tokens"] > 0
    assert state["effective_max_running_requests_per_dp"] > 0 and state["last_gen_throughput"] == 0
    assert cards["data"][0]["owned_by"] == "sglang"


def test_a_drafting_engine_tells_how_many_tokens_it_accepts():
    drafts = {**SGLANG, "serve": {"sglang": {"context_length": 256}, "speculative_config": {
        "method": "ngram", "num_speculative_tokens": 3, "acceptance": {"name": "geometric", "rate": 0.7}}}}
    _, told = talk(("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}),
                   "/server_info", scenario=drafts)
    (state,) = told.json()["internal_states"]
    assert 1 < state["avg_spec_accept_length"] < 4 and state["last_gen_throughput"] > 0


def test_each_engine_has_its_own_paths():
    answers = talk(*OWN, ("/generate", {"text": "a"}))
    assert {answer.status_code for answer in answers} == {404}
    assert [answer.status_code for answer in talk("/version", "/load", scenario=SGLANG)] == [404, 404]
    assert [answer.status_code for answer in talk("/health_generate", "/ready", "/", "/ping", scenario=SGLANG)] == (
        [200] * 4)


def test_a_key_is_asked_for_everywhere_but_for_health_and_metrics():
    paths = "/server_info", "/v1/models", "/health", "/health_generate", "/metrics"
    answers = talk(("/generate", {"text": "a"}), *paths, scenario=SGLANG, keys=["yes"])
    assert [answer.status_code for answer in answers] == [401, 401, 401, 200, 200, 200]


def test_openais_api_is_there_too():
    whole, streamed = talk(("/v1/chat/completions", {"messages": HELLO, "max_tokens": 4}), ("/v1/completions", {
        "prompt": "a", "stream": True, "max_tokens": 2, "ignore_eos": True}), scenario=SGLANG)
    assert whole.json()["usage"]["completion_tokens"] <= 4
    assert len(chunks(streamed)) == 2


def test_generate_may_be_put():
    async def play():
        async with client(scenario=SGLANG) as (made, _):
            put = await made.put("/generate", json={"text": "a", "sampling_params": SHORT})
            return put.status_code, (await made.get("/generate")).status_code
    assert asyncio.run(play()) == (200, 405)


def test_while_it_drains_it_is_not_healthy():
    async def play():
        async with client(scenario=SGLANG) as (made, application):
            application.draining = True
            application.api.live.drain()
            return [(await made.get(path)).status_code for path in ("/health", "/health_generate", "/ready")], (
                await made.post("/generate", json={"text": "a"}))
    statuses, refusal = asyncio.run(play())
    assert statuses == [503] * 3
    assert refusal.status_code == 503 and json.loads(refusal.content)["object"] == "error"


def test_an_application_answers_as_vllm_until_it_is_told_otherwise():
    assert "/generate" not in Application().paths
