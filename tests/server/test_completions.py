"""`/v1/completions` answers as vLLM does, with as many tokens as it says."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Admitted
from ksim.server.text import MadeUpTokenizer
from tests.properties import examples
from tests.server.talk import ask, chat, chunks, client, complete, talk

EXACT = {"ignore_eos": True, "max_tokens": 6}
COUNT = MadeUpTokenizer(128_256).encode


def test_a_completion_has_the_shape_of_vllms():
    made = complete(prompt="Hello there", **EXACT)
    (choice,) = made.pop("choices")
    assert made.pop("id").startswith("cmpl-")
    assert made.pop("system_fingerprint").startswith("ksim-")
    assert made == {
        "object": "text_completion", "created": 7, "model": "llama-3.2-1b", "service_tier": None,
        "usage": {"prompt_tokens": 2, "total_tokens": 8, "completion_tokens": 6, "prompt_tokens_details": None,
                  "completion_tokens_details": None},
        "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    assert len(COUNT(choice.pop("text"))) == 6
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": None,
                      "prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None,
                      "weight_versions": None}


@examples(12)
@given(st.data())
def test_a_stream_says_what_a_whole_answer_says(data):
    body = {"prompt": data.draw(st.sampled_from(["Tell me more.", [5, 6, 7], ["a b", "c"], [[1], [2, 3]]])),
            "n": data.draw(st.integers(1, 3)), "max_tokens": data.draw(st.integers(1, 12)),
            "ignore_eos": data.draw(st.booleans()), "echo": data.draw(st.booleans()),
            "logprobs": data.draw(st.sampled_from([None, 0, 2])),
            "return_token_ids": data.draw(st.booleans())}
    (whole,) = talk(("/v1/completions", body))
    (streamed,) = talk(("/v1/completions", {**body, "stream": True, "stream_options": {
        "include_usage": True, "continuous_usage_stats": data.draw(st.booleans())}}))
    *told, last = chunks(streamed)
    whole = whole.json()
    assert {key: last["usage"][key] for key in last["usage"]} == {
        key: value for key, value in whole["usage"].items() if value is not None}
    for choice in whole["choices"]:
        own = [part["choices"][0] for part in told if part["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        assert [token for part in own for token in part["token_ids"] or ()] == (choice["token_ids"] or [])
        if choice["logprobs"]:
            for key in choice["logprobs"]:
                assert [value for part in own for value in part["logprobs"][key]] == choice["logprobs"][key]


def test_usage_runs_along_where_it_is_asked_to():
    answer = ask("/v1/completions", prompt="a", stream=True,
                 stream_options={"include_usage": True, "continuous_usage_stats": True}, **EXACT)
    assert [part["usage"]["completion_tokens"] for part in chunks(answer)] == [1, 2, 3, 4, 5, 6, 6]


def test_the_same_requests_get_the_same_answers_and_other_seeds_others():
    calls = [("/v1/completions", {"prompt": "a"})] * 4
    texts = [[answer.json()["choices"][0]["text"] for answer in talk(*calls)] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len({*texts[0]}) == 4


def test_lengths_are_drawn_from_the_workload_up_to_what_is_asked_for():
    choices = [answer.json()["choices"][0] for answer in talk(*[("/v1/completions", {"prompt": "a", "max_tokens": 5})
                                                                 ] * 12)]
    lengths = [len(COUNT(choice["text"])) for choice in choices]
    assert {*lengths} == {3, 4, 5}
    assert all((length == 5) == (choice["finish_reason"] == "length")
               for length, choice in zip(lengths, choices, strict=True))
    assert complete(prompt="a", max_tokens=8, min_tokens=8)["usage"]["completion_tokens"] == 8


def test_a_stop_string_ends_the_text_before_it():
    (plain,) = complete(prompt="a", **EXACT)["choices"]
    words = plain["text"].split()
    for kept, extra in ((False, ""), (True, words[3])):
        made = complete(prompt="a", stop=["none", words[3]], include_stop_str_in_output=kept, **EXACT)
        (choice,) = made["choices"]
        assert choice["text"] == plain["text"].partition(words[3])[0] + extra
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", words[3])
        assert made["usage"]["completion_tokens"] == 4
    assert complete(prompt="a", stop=words[1], min_tokens=6, **EXACT)["choices"][0]["finish_reason"] == "length"


def test_a_stop_token_ends_the_text_before_it():
    (plain,) = complete(prompt="a", return_token_ids=True, **EXACT)["choices"]
    (choice,) = complete(prompt="a", stop_token_ids=[plain["token_ids"][2]], **EXACT)["choices"]
    assert choice["text"] == " " + " ".join(plain["text"].split()[:2])
    assert choice["stop_reason"] == plain["token_ids"][2]


def test_an_echo_comes_before_the_answer_and_alone_where_nothing_else_is_asked_for():
    assert complete(prompt="One, two", echo=True, **EXACT)["choices"][0]["text"].startswith("One, two ")
    alone = complete(prompt="One, two", echo=True, max_tokens=0, logprobs=1)
    assert alone["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert len(alone["choices"][0]["logprobs"]["tokens"]) == alone["usage"]["prompt_tokens"] == 3


def test_logprobs_have_what_was_sampled_and_the_likeliest_others():
    told = complete(prompt="a", logprobs=3, **EXACT)["choices"][0]
    shown = told["logprobs"]
    assert "".join(shown["tokens"]) == told["text"]
    assert [len(likely) for likely in shown["top_logprobs"]] == [3] * 6
    for token, own, likely in zip(shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True):
        assert likely[token] == own == max(likely.values())
    assert shown["text_offset"] == [told["text"].index(token) for token in shown["tokens"]]
    assert complete(prompt="a", logprobs=1, return_tokens_as_token_ids=True, **EXACT)[
        "choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


def test_prompt_logprobs_have_none_of_the_first_token():
    made = complete(prompt=[7, 8, 9], prompt_logprobs=2, **EXACT)["choices"][0]["prompt_logprobs"]
    assert made[0] is None
    assert [next(iter(place)) for place in made[1:]] == ["8", "9"]
    assert all([entry["rank"] for entry in place.values()] == [1, 2] for place in made[1:])


def test_prompts_are_cut_where_that_is_asked_for():
    for side, kept in (("left", [4, 5]), ("right", [1, 2])):
        made = complete(prompt=[1, 2, 3, 4, 5], truncate_prompt_tokens=2, truncation_side=side, return_token_ids=True,
                        **EXACT)
        assert made["choices"][0]["prompt_token_ids"] == kept
    assert complete(prompt="a " * 400, truncate_prompt_tokens=-1, max_tokens=1)["usage"]["prompt_tokens"] == 255


def test_a_beam_search_returns_its_beams():
    made = complete(prompt="a", use_beam_search=True, n=2, max_tokens=4)
    assert [len(COUNT(choice["text"])) for choice in made["choices"]] == [4, 4]


def test_a_request_that_asks_for_too_much_room_gets_what_there_is():
    made = complete(prompt="word " * 200, max_tokens=256, ignore_eos=True)
    assert made["usage"]["total_tokens"] == 256
    assert made["choices"][0]["finish_reason"] == "length"


def test_ids_of_requests_are_those_of_clients_and_come_back():
    answer = ask("/v1/completions", headers={"X-Request-Id": "mine"}, prompt="a")
    assert answer.json()["id"] == "cmpl-mine"
    assert answer.headers["x-request-id"] == "mine"
    assert chat(request_id="ours")["id"] == "chatcmpl-ours"


def test_the_cached_tokens_of_several_sequences_are_those_of_the_first_as_in_results():
    """vLLM's streams have those of the first output (serving_chat.py); a whole answer is held to the same here."""
    async def told():
        async with client(tells_cached=True) as (made, application):
            live = application.api.live
            admitted = []
            live.log.subscribe(Admitted, admitted.append)
            answers = [await made.post("/v1/completions", json={"prompt": [*range(1, 50)], "n": 3, **EXACT})
                       for _ in range(2)]
            usages = [answer.json()["usage"]["prompt_tokens_details"] for answer in answers]
            return [usage and usage["cached_tokens"] for usage in usages], [event.cached for event in admitted]

    usage, results = asyncio.run(told())
    assert [cached or 0 for cached in usage] == results == [0, 48]
