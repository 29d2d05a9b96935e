"""`/v1/chat/completions` answers as vLLM does."""

import base64
import struct

import pytest

from ksim.server.text import MadeUpTokenizer
from tests.server.talk import HELLO, SCENARIO, ask, chat, chunks, error

EXACT = {"ignore_eos": True, "max_tokens": 5}
COUNT = MadeUpTokenizer(128_256).encode
VISION = {**SCENARIO, "model": "qwen2.5-vl-7b", "serve": {"max_model_len": 4096}}
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 280, 140)


def image(data=PNG, kind="png"):
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}


def test_a_chat_has_the_shape_of_vllms():
    made = chat(**EXACT)
    (choice,) = made.pop("choices")
    assert made.pop("id").startswith("chatcmpl-")
    assert {*made} == {"object", "created", "model", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
                       "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics"}
    assert made["object"] == "chat.completion"
    assert len(COUNT(choice["message"].pop("content"))) == 5
    assert choice["message"] == {"role": "assistant", "refusal": None, "annotations": None, "audio": None,
                                 "function_call": None, "reasoning": None}
    assert choice["finish_reason"] == "length"


def test_a_stream_begins_with_a_role_and_ends_with_a_reason():
    answer = ask("/v1/chat/completions", messages=HELLO, n=2, stream=True, **EXACT)
    told = [part["choices"][0] for part in chunks(answer)]
    assert [part["delta"] for part in told[:2]] == [{"role": "assistant", "content": ""}] * 2
    for index in (0, 1):
        own = [part for part in told[2:] if part["index"] == index]
        assert [part["finish_reason"] for part in own] == [None] * 4 + ["length"]
        assert len(COUNT("".join(part["delta"]["content"] for part in own))) == 5
    assert "system_fingerprint" in chunks(answer)[-1]


def test_usage_comes_last_and_has_no_choice():
    *told, last = chunks(ask("/v1/chat/completions", messages=HELLO, stream=True,
                             stream_options={"include_usage": True}, **EXACT))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5
    assert not any("usage" in part for part in told)


def test_logprobs_of_a_chat_have_bytes():
    (choice,) = chat(logprobs=True, top_logprobs=2, **EXACT)["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert len(entry["top_logprobs"]) == 2
    assert chat(logprobs=True, **EXACT)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_what_was_answered_is_counted_as_many_tokens_when_it_comes_back():
    first = chat(messages=HELLO, **EXACT)
    messages = [*HELLO, {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                {"role": "user", "content": "And then?"}]
    tokens = chat(messages=messages, **EXACT)["usage"]["prompt_tokens"]
    assert tokens == first["usage"]["prompt_tokens"] + 5 + 1 + (3 + len(COUNT("And then?"))) + 2


def test_parts_of_a_message_and_tools_are_counted():
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]
    plain = chat(messages=[{"role": "user", "content": "Hello\nyou"}])["usage"]["prompt_tokens"]
    assert chat(messages=[{"role": "user", "content": parts}])["usage"]["prompt_tokens"] == plain
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    assert chat(tools=[tool])["usage"]["prompt_tokens"] > plain


def test_an_image_has_the_tokens_that_its_size_has():
    text = [{"type": "text", "text": "What is it?"}]
    counts = [ask("/v1/chat/completions", server={"scenario": VISION}, max_tokens=1, messages=[
        {"role": "user", "content": content}]).json()["usage"]["prompt_tokens"] for content in (text, [*text, image()])]
    assert counts[1] - counts[0] == (280 // 28) * (140 // 28) + 2


@pytest.mark.parametrize("data", [
    b"GIF89a" + struct.pack("<HH", 280, 140),
    b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08" + struct.pack(">HH", 140, 280) + bytes(8),
    b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (279).to_bytes(3, "little") + (139).to_bytes(3, "little"),
    b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + (279 | 139 << 14).to_bytes(4, "little") + bytes(5),
    b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 280, 140),
], ids=["gif", "jpeg", "webp-x", "webp-l", "webp"])
def test_sizes_of_images_are_read_from_their_headers(data):
    from ksim.server.openai.prompts import image_of

    made = image_of(image(data)["image_url"])
    assert (made.width, made.height) == (280, 140)


def test_an_image_that_cannot_be_read_or_seen_is_refused():
    message = [{"role": "user", "content": [image(b"nothing")]}]
    assert error("/v1/chat/completions", messages=message)[0] == 422
    status, told = error("/v1/chat/completions", messages=[{"role": "user", "content": [image()]}])
    assert (status, told["message"]) == (400, "At most 0 image(s) may be provided in one prompt. (parameter=image)")
    sound = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]
    assert "0 audio(s)" in error("/v1/chat/completions", messages=sound)[1]["message"]


def test_the_last_message_is_continued_or_echoed():
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}]
    made = chat(messages=messages, echo=True, add_generation_prompt=False, continue_final_message=True, **EXACT)
    assert made["choices"][0]["message"]["content"].startswith("Well,")
    assert chat(messages=messages)["usage"]["prompt_tokens"] == made["usage"]["prompt_tokens"] + 3

