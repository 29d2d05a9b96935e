"""Whatever clients send, none is answered by 500, and each error has the shape of vLLM, or of SGLang.

`make explore` sends many requests, with fresh seeds: thousands through the application, without a socket.
"""

import asyncio
import json
from collections.abc import Sequence
from math import inf, nan
from typing import Any

import attrs
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ksim.server.http.application import Application
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.metrics import Meter
from ksim.server.openai.api import Api
from ksim.server.openai.fields import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from ksim.server.openai.kinds import ServedModel
from ksim.server.sglang_api import SglangApi
from ksim.server.sglang_fields import TYPES, GenerateBody
from ksim.server.sglang_metrics import SglangHttpMetrics, SglangMeter
from ksim.server.text import MadeUpTokenizer
from tests.properties import examples
from tests.server.fake import FakeLive
from tests.server.talk import SCENARIO, SGLANG

#: Paths that take a body, and the fields of each.
FIELDS: dict[str, type[Any]] = {"/v1/completions": CompletionFields, "/v1/chat/completions": ChatFields,
                                "/tokenize": TokenizeFields, "/detokenize": DetokenizeFields}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello"}, "/tokenize": {"prompt": "Hello"}, "/detokenize": {"tokens": [1, 2]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}, "/generate": {"text": "Hello"}}
NUMBERS = [10**400, -10**400, 2**63, 2**31, -1, 0, 1, 2, 16, 255, 256, 257, 10**5, 1e308, 1e300, -1e300, inf, -inf, nan,
           5e-324, -0.0, 0.5]
NAMES = ["meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b", "../../etc"]
TEXTS = st.one_of(
    st.text(max_size=8), st.text(st.characters(categories=["Cs", "Cc", "Lo", "Nd"]), max_size=4),
    st.sampled_from(["", "\ud800", "a\udfffb", "\0", "nan", "1e999", "9" * 5000, "a" * 5000, "true", "user", "auto",
                     "required", "left", "text", "data:image/png;base64,", "data:image/png;base64,iVBORw0KGgo=",
                     *NAMES]))
SCALARS = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.integers(), st.integers(-3, 300),
                    st.floats(), TEXTS)
PARTS = st.fixed_dictionaries({}, optional={
    "type": st.sampled_from(["text", "image_url", "refusal", "thinking", "input_audio", "video", [], None]),
    "text": SCALARS, "image_url": TEXTS | st.fixed_dictionaries({"url": TEXTS}), "refusal": SCALARS})
MESSAGES = st.fixed_dictionaries({}, optional={
    "role": st.sampled_from(["user", "assistant", "tool"]) | SCALARS,
    "content": TEXTS | st.lists(PARTS | TEXTS, max_size=2),
    "tool_calls": SCALARS | st.lists(st.fixed_dictionaries({"function": st.dictionaries(TEXTS, SCALARS, max_size=1)}),
                                     max_size=1)})
TOOLS = st.fixed_dictionaries({"function": st.fixed_dictionaries({}, optional={"name": TEXTS, "parameters": SCALARS})})
PARAMETERS = st.dictionaries(st.sampled_from([*TYPES]) | TEXTS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3)
KEYS = TEXTS | st.sampled_from(["type", "include_usage", "function"])
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3),
    st.lists(MESSAGES, max_size=2), st.lists(TOOLS, max_size=1)), max_leaves=6)
HEADERS = st.lists(st.tuples(
    st.sampled_from([b"x-request-id", b"x-vllm-priority", b"x-session-id", b"x-gateway-inference-fairness-id",
                     b"authorization", b"content-length", b"host", b"origin"]),
    st.binary(max_size=12) | st.sampled_from([b"9" * 5000, b"-1", b"1e400", b"Bearer \xff", b"\xd9\xa3"])), max_size=2)
PATHS = TEXTS.map(lambda text: "/v1/models/" + text) | st.sampled_from([
    *FIELDS, "/v1/models", "/health", "/load", "/metrics", "/ping", "/version", "/v1/models/", "/", "", "//", "*",
    "/v1/../health", "/v1/completions/"])
METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "M-SEARCH"])


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """A sound body of *path* with some fields of other kinds, or no JSON at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=20) | VALUES.map(lambda value: json.dumps(value).encode()))
    names = [field.name for field in attrs.fields(FIELDS.get(path, GenerateBody))]
    body = SOUND[path] | draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    if path == "/generate" and draw(st.booleans()):
        body["sampling_params"] = draw(PARAMETERS | st.lists(PARAMETERS, max_size=2))
    return json.dumps(body).encode()


@st.composite
def calls(draw: st.DrawFn, paths: Sequence[str] = tuple(FIELDS)) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
    """A method, a path, headers and a body."""
    headers = draw(HEADERS)
    if draw(st.integers(0, 3)):
        path = draw(st.sampled_from(paths))
        return "POST", path, [*headers, (b"content-type", b"application/json")], draw(bodies(path))
    return draw(METHODS), draw(PATHS), headers, draw(st.binary(max_size=5))


class Server:
    """An application on a fleet that is played as soon as something is due."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.fake = FakeLive({**scenario, "flow_control": {"name": "queue_limit"}})
        self.fake.live.log.kept = None
        served = ServedModel.of(self.fake.live.fleet)
        meter = (SglangMeter if served.sglang else Meter)(self.fake.live, "m")
        application = Application(max_body=10**5, metrics=lambda: meter.text(*self.app.families))
        application.api = Api(self.fake.live, served, MadeUpTokenizer(served.vocabulary), on_abort=meter.aborted,
                              tells_cached=True)
        if isinstance(meter, SglangMeter):
            application.answer_as(SglangApi(application.api, meter))
            self.app: HttpMetrics | SglangHttpMetrics = SglangHttpMetrics(application, application.paths)
        else:
            self.app = HttpMetrics(application, application.paths)

    async def answer(self, method: str, path: str, headers: list[tuple[bytes, bytes]],
                     body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer to one request."""
        sent, parts, over = list[Any](), [body], asyncio.Event()

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                over.set()

        scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": b"",
                 "headers": headers, "raw_path": path.encode("utf-8", "replace"), "scheme": "http", "state": {}}
        task, turns = asyncio.create_task(self.app(scope, receive, send)), 0
        while not task.done():
            if (due := self.fake.live.env.due) < inf:
                self.fake.until(due)
            await asyncio.sleep(0)
            turns += 1
            assert turns < 10**4, "it is never answered"
        await task
        assert over.is_set() and not self.fake.live.handles
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server(SCENARIO)


@pytest.fixture(scope="module")
def sglang() -> Server:
    return Server(SGLANG)


@given(call=calls())
@examples(400)
def test_no_request_is_answered_by_500(server: Server, call: Any) -> None:
    status, told = asyncio.run(server.answer(*call))
    event(f"{status}")
    assert status < 500
    if status >= 400 and call[0] != "HEAD":
        error = json.loads(told)["error"]
        assert error.keys() == {"message", "type", "param", "code"} and error["code"] == status and error["message"]


@given(call=calls(("/generate", *FIELDS)))
@examples(400)
def test_no_request_to_sglang_is_answered_by_500(sglang: Server, call: Any) -> None:
    status, told = asyncio.run(sglang.answer(*call))
    event(f"{status}")
    assert status < 500
    if status >= 400 and call[0] != "HEAD":
        error = json.loads(told)
        assert error.keys() in ({"object", "message", "type", "param", "code"}, {"error"}, {"detail"})
        assert error.get("code", status) == status
