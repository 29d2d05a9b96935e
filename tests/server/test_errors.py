"""What cannot be served is refused in vLLM's words, and the server lives on."""

import json

import pytest

from tests.server.talk import HELLO, ask, error, post, talk

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
#: Bodies, the start of what vLLM 0.33 says of them, and the parameter that it names.
REFUSED = [
    ({"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
     "max_tokens"),
    ({"prompt": "a", "max_tokens": 257}, "max_tokens=257 cannot be greater than max_model_len=256. Please request"
     " fewer output tokens. (parameter=max_tokens, value=257)", "max_tokens"),
    ({"prompt": "a " * 300}, "This model's maximum context length is 256 tokens. However, your prompt contains at"
     " least 257 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of"
     " the input prompt. (parameter=input_tokens, value=257)", "input_tokens"),
    ({"prompt": "a " * 3000}, "This model's maximum context length is 256 tokens. However, your prompt contains 6000"
     " characters (more than 4096 characters, which is the upper bound for 256 input tokens).", "input_text"),
    ({"prompt": "a", "n": 16_384, "max_tokens": 255, "ignore_eos": True}, "The 16,384 sequences of this request would"
     " have 4,177,920 tokens", None),
    ({"prompt": ["a"] * 200, "n": 99, "max_tokens": 200, "ignore_eos": True}, "The 19,800 sequences of this request"
     " would have 3,960,000 tokens", None),
    ({"prompt": [1] * 300}, "This model's maximum context length is 256 tokens. However, your prompt contains 300"
     " input tokens", "input_tokens"),
    ({"prompt": [1] * 256}, "max_tokens must be at least 1, got 0.", "max_tokens"),
    ({"prompt": ""}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
    ({}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
    ({"prompt": []}, "You must pass at least one prompt (parameter=prompt)", "prompt"),
    ({"prompt": [[]]}, "The decoder prompt cannot be empty", None),
    ({"prompt": [10**9]}, "Token id 1000000000 is out of vocabulary", None),
    ({"prompt": ["a"] * 1025}, "prompt list length 1025 exceeds the maximum allowed count of 1024.", "prompt"),
    ({"prompt": "a", "n": 0}, "n must be at least 1, got 0.", None),
    ({"prompt": "a", "n": 20_000}, "n must be at most 16384, got 20000.", None),
    ({"prompt": "a", "n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2.", None),
    ({"prompt": "a", "temperature": -1}, "temperature must be non-negative, got -1.0.", "temperature"),
    ({"prompt": "a", "temperature": 3}, "temperature must be in [0, 2], got 3.0.", "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p must be in (0, 1], got 0.0.", "top_p"),
    ({"prompt": "a", "top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2.", None),
    ({"prompt": "a", "min_p": 2}, "min_p must be in [0, 1], got 2.0.", None),
    ({"prompt": "a", "presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3.0.", None),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0.", None),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens must be less than or equal to max_tokens=16, got 17.", None),
    ({"prompt": "a", "min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1.", None),
    ({"prompt": "a", "stop": [""]}, "stop cannot contain an empty string.", None),
    ({"prompt": "a", "bad_words": [""]}, "bad_words cannot contain an empty string. Got bad_words=['']", None),
    ({"prompt": "a", "stop_token_ids": [-1]}, "token_id(s) [-1] in stop_token_ids contain out-of-vocab token ids.",
     "stop_token_ids"),
    ({"prompt": "a", "logprobs": -2}, "`logprobs` must be a positive value or -1.", "logprobs"),
    ({"prompt": "a", "logprobs": "x"}, "`logprobs` must be an integer.", "logprobs"),
    ({"prompt": "a", "logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20",
     "logprobs"),
    ({"prompt": "a", "prompt_logprobs": 21}, "Requested prompt logprobs of 21, which is greater than max allowed: 20",
     "prompt_logprobs"),
    ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "`prompt_logprobs` are not available when `stream=True`.",
     "prompt_logprobs"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "Stream options can only be defined when"
     " `stream=True`.", "stream_options"),
    ({"prompt": "a", "truncate_prompt_tokens": 300}, "truncate_prompt_tokens=300 cannot be greater than max_model_len"
     " = 256.", "truncate_prompt_tokens"),
    ({"prompt": "a", "cache_salt": "a/b"}, "Parameter 'cache_salt' must be at most 128 characters", "cache_salt"),
    ({"prompt": "a", "use_beam_search": True, "stream": True}, "Streaming is not currently supported with beam search",
     None),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias contains key(s) that cannot be converted to integer token"
     " IDs: ['x']", "logit_bias"),
    ({"prompt": "a", "structured_outputs": {"json": {}, "regex": "a"}}, "You can only use one kind of constraints for"
     " structured outputs ('json', 'regex' or 'choice').", "structured_outputs"),
    ({"prompt": "a", "response_format": {"type": "json_schema"}}, "When response_format type is 'json_schema', the"
     " 'json_schema' field must be provided.", "response_format"),
]
#: The same for fields of the wrong kind, as pydantic says it.
MISREAD = [
    ({"prompt": "a", "max_tokens": "x"}, "body.max_tokens", "{'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg':"
     " 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}"),
    ({"prompt": "a", "max_tokens": 1.5}, "body.max_tokens", "{'type': 'int_from_float', 'loc': 'body.max_tokens',"
     " 'msg': 'Input should be a valid integer, got a number with a fractional part', 'input': '1.5'}"),
    ({"prompt": "a", "n": [1]}, "body.n", "{'type': 'int_type', 'loc': 'body.n', 'msg': 'Input should be a valid"
     " integer', 'input': '<list of 1 items>'}"),
    ({"prompt": "a", "stream": "maybe"}, "body.stream", "{'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input"
     " should be a valid boolean, unable to interpret input', 'input': 'maybe'}"),
    ({"prompt": "a", "temperature": "hot"}, "body.temperature", "{'type': 'float_parsing', 'loc': 'body.temperature',"
     " 'msg': 'Input should be a valid number, unable to parse string as a number', 'input': 'hot'}"),
    ({"prompt": "a", "model": 5}, "body.model", "{'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be"
     " a valid string', 'input': '5'}"),
    ({"prompt": "a", "seed": 2**70}, "body.seed", "{'type': 'less_than_equal', 'loc': 'body.seed', 'msg': 'Input"
     " should be less than or equal to 9223372036854775807', 'input': '1180591620717411303424', 'ctx': {'le':"
     " 9223372036854775807}}"),
    ({"prompt": "a", "stop": 5}, "body.stop", "{'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a"
     " valid string', 'input': '5'}"),
    ({"prompt": 5}, "body.prompt", "{'type': 'list_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid"
     " list', 'input': '5'}"),
    ({"prompt": "a", "stop": ["a"] * 5}, "body.stop", "'msg': 'List should have at most 4 items after validation, not"
     " 5'"),
    ({"prompt": "a", "stream": True, "stream_options": 5}, "body.stream_options", "'Input should be a valid dictionary"
     " or instance of StreamOptions', 'input': '5', 'ctx': {'class_name': 'StreamOptions'}}"),
    ({"prompt": "a", "stream": True, "stream_options": {"include_usage": "perhaps"}},
     "body.stream_options.include_usage", "'type': 'bool_parsing'"),
    (5, "body", "Input should be a valid dictionary"),
    ([1], "body", "'<list of 1 items>'"),
]
CHATTED = [
    ({}, "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'",
     "body.messages"),
    ({"messages": "hi"}, "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages'", "body.messages"),
    ({"messages": HELLO, "top_logprobs": 2}, "when using `top_logprobs`, `logprobs` must be set to true.",
     "top_logprobs"),
    ({"messages": HELLO, "tools": []}, "`tools` must not be an empty array.", "tools"),
    ({"messages": HELLO, "tool_choice": "auto"}, "When using `tool_choice`, `tools` must be set.", "tool_choice"),
    ({"messages": HELLO, "tools": [{"function": {}}], "tool_choice": "required"}, "tool_choice=\"required\" requires"
     " --tool-call-parser to be set", None),
    ({"messages": HELLO, "max_completion_tokens": 300}, "max_completion_tokens=300 cannot be greater than"
     " max_model_len=256.", "max_completion_tokens"),
    ({"messages": HELLO, "add_generation_prompt": True, "continue_final_message": True}, "Cannot set both"
     " `continue_final_message` and `add_generation_prompt` to True.", None),
    ({"messages": HELLO, "chat_template": "{{ 1 }}"}, "Chat template is passed with request, but"
     " --trust-request-chat-template is not set.", None),
    ({"messages": HELLO, "tools": [{}]}, "1 validation error:\n  {'type': 'missing', 'loc': 'body.tools.0.function'",
     "body.tools.0.function"),
    ({"messages": [{"content": "hi"}]}, "messages[0] has no role", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "zzz"}]}]}, "Unknown part type: zzz", None),
]


@pytest.mark.parametrize(("path", "body", "says", "param"), [
    *((COMPLETIONS, *case) for case in REFUSED), *((CHATS, *case) for case in CHATTED)], ids=str)
def test_a_request_is_refused_in_vllms_words(path, body, says, param):
    status, told = error(path, **body)
    assert told["message"].startswith(says)
    assert (status, told["param"]) == (400, param)
    assert told["type"] == ("Bad Request" if "validation error" in says else "BadRequestError")


def test_a_chat_without_messages_is_left_to_the_template_as_in_vllm():
    assert ask(CHATS, messages=[]).status_code == 200


@pytest.mark.parametrize(("body", "param", "says"), MISREAD, ids=str)
def test_a_field_of_the_wrong_kind_is_refused_in_pydantics_words(body, param, says):
    (answer,) = talk((COMPLETIONS, body))
    told = answer.json()["error"]
    assert (answer.status_code, told["type"], told["param"]) == (400, "Bad Request", param)
    assert says in told["message"] and "validation error" in told["message"]


def test_ten_problems_are_enough():
    keys = "n stream temperature top_p top_k min_p seed ignore_eos min_tokens priority model"
    body = {"prompt": "a", **{key: [] for key in keys.split()}}
    told = error(COMPLETIONS, **body)[1]["message"]
    assert told.startswith("11 validation errors:") and told.endswith("...and 1 more errors")


def test_numbers_in_texts_are_read_and_unknown_fields_are_not():
    assert ask(COMPLETIONS, prompt="a", max_tokens="3", stream="no", best_of=4, nonsense=1).status_code == 200


def test_an_unknown_model_is_not_found():
    status, told = error(COMPLETIONS, prompt="a", model="gpt-5")
    assert status == 404
    assert told == {"message": "The model `gpt-5` does not exist. Valid aliases: llama-3.2-1b.",
                    "type": "NotFoundError", "param": "model", "code": 404}
    assert error(COMPLETIONS, prompt="a", model="meta-llama/Llama-3.1-8B")[0] == 404


def test_the_model_has_its_name_on_hugging_face_too():
    assert talk("/v1/models/meta-llama/Llama-3.2-1B-Instruct")[0].json()["id"] == "llama-3.2-1b"
    assert ask(COMPLETIONS, prompt="a", model="meta-llama/Llama-3.2-1B-Instruct").json()["model"] == "llama-3.2-1b"


@pytest.mark.parametrize("body", [
    b"{", b"", b"nothing", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000, b'{"prompt": "a"', b"\0" * 10,
    json.dumps({"prompt": "\ud800", "echo": True}).encode()], ids=repr)
def test_a_body_that_is_no_json_leaves_the_server_alive(body):
    answer, after = post(body)
    assert answer.status_code == 400
    assert after.status_code == 200
    answer.json()


@pytest.mark.parametrize(("path", "body", "place"), [
    ("/tokenize", {"prompt": "a", "model": "\ud800"}, "body.model"),
    (COMPLETIONS, {"prompt": ["a", "b\udfff"]}, "body.prompt.1"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"\ud800": 1}}, "body.logit_bias"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
     "body.messages.0.content.0.text")])
def test_half_a_pair_of_surrogates_is_no_text(path, body, place):
    told = post(json.dumps(body).encode(), path)[0].json()["error"]
    assert (told["code"], told["param"]) == (400, place) and "'type': 'string_unicode'" in told["message"]


def test_a_pair_of_surrogates_is_a_letter():
    answer, _ = post(json.dumps({"prompt": "\U0001f642", "echo": True}).encode())
    assert answer.json()["choices"][0]["text"][0] == "\U0001f642"


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "NaN"])
def test_numbers_beyond_those_of_floats_are_refused(name, value):
    told = post(f'{{"prompt": "a", "{name}": {value}}}'.encode())[0].json()["error"]
    assert told["code"] == 400 and name in told["message"]


def test_json_says_where_it_breaks():
    assert post(b'{"prompt": }')[0].json()["error"] == {
        "message": "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.11', 'msg': 'JSON decode error',"
                   " 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}",
        "type": "Bad Request", "param": "body.11", "code": 400}


def test_another_content_type_is_refused():
    answer, _ = post(b"{}", kind="text/plain")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("Unsupported Media Type: Only 'application/json' is allowed")


def test_no_such_path_or_method():
    assert error("/v1/nothing")[1]["message"] == "Not Found"
    (answer,) = talk(COMPLETIONS)
    assert (answer.status_code, answer.json()["error"]["message"]) == (405, "Method Not Allowed")
