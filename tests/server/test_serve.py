"""`ksim serve` as a process, asked by OpenAI's own client."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module

import httpx
import pyarrow.parquet as pq
import pytest
from tomli_w import dumps

from tests.cli.command import ROOT, ksim, ksim_here
from tests.server.talk import SCENARIO, SGLANG

TEXT = dumps(SCENARIO)


@pytest.fixture(scope="module")
def openai():
    """Its library, which takes a second of CPU to import: only where these tests run."""
    return import_module("openai")


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "scenario.toml").write_text(TEXT)
    return tmp_path


class Server:
    """A server at a free port, which is there once it has said so."""

    def __init__(self, folder, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ksim", "serve", "scenario.toml", "--port", "0", *words], cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "OPENBLAS_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
        self.said = self.process.stderr.readline()
        self.url = self.said.partition(" on ")[2].partition(";")[0]

    def end(self):
        """Stop it with Ctrl-C; return the status and what else it has said."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate()
        return self.process.returncode, said


def test_openais_client_is_answered(scenario, openai):
    server = Server(scenario, "--speed", "100", "--served-model-name", "mine", "--api-key", "secret")
    assert server.said.startswith("ksim: serving mine on http://localhost:")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
        assert [model.id for model in client.models.list()] == ["mine"]
        messages = [{"role": "user", "content": "Hello"}]
        whole = client.chat.completions.create(model="mine", messages=messages, max_tokens=7,
                                               extra_body={"ignore_eos": True})
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (7, "length")
        stream = client.chat.completions.create(model="mine", messages=messages, max_tokens=7, stream=True,
                                                stream_options={"include_usage": True},
                                                extra_body={"ignore_eos": True})
        *parts, last = stream
        assert "".join(part.choices[0].delta.content for part in parts).count(" ") == 6
        assert last.usage.completion_tokens == 7
        assert client.completions.create(model="mine", prompt="Hi", logprobs=2).choices[0].logprobs.tokens
        with pytest.raises(openai.NotFoundError, match="`other` does not exist"):
            client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len=256"):
            client.chat.completions.create(model="mine", messages=messages, max_tokens=500)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
    assert server.end() == (0, "")


def test_what_the_page_shows_runs(scenario, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "server.md").read_text(), re.DOTALL)
    server = Server(scenario, "--speed", "100")
    exec(code.replace("http://localhost:8000", server.url), {})
    server.end()
    assert "CompletionUsage" in capsys.readouterr().out


def test_a_server_of_sglang_answers_its_clients(scenario):
    (scenario / "scenario.toml").write_text(dumps(SGLANG))
    server = Server(scenario, "--speed", "100")
    with httpx.Client(base_url=server.url) as client:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}, "stream": True}
        with client.stream("POST", "/generate", json=body) as answer:
            *events, done = [line for line in answer.iter_lines() if line]
        assert done == "data: [DONE]"
        assert [json.loads(line[6:])["meta_info"]["completion_tokens"] for line in events] == [1, 2, 3, 4, 5]
        assert client.get("/server_info").json()["version"].startswith("0.5.8+ksim.")
        told = client.get("/metrics").text
    assert 'sglang:num_requests_total{engine_type="unified",is_streaming="true",model_name="llama-3.2-1b"} 1.0' in told
    assert 'sglang:http_responses_total{endpoint="/generate",method="POST",status_code="200"} 1.0' in told
    assert "vllm:" not in told and "ksim:speed" in told
    assert server.end() == (0, "")


def test_a_server_of_vllm_imports_nothing_of_sglang(scenario):
    code = "import sys, ksim.server.serving; print([name for name in sys.modules if 'sglang_' in name])"
    assert subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""},
                          capture_output=True, text=True).stdout == "[]\n"


def test_requests_on_their_way_are_answered_after_ctrl_c(scenario, openai):
    server = Server(scenario)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = client.completions.create(model=None, prompt="Hi", max_tokens=200, stream=True,
                                           extra_body={"ignore_eos": True})
        parts = [next(stream)]
        server.process.send_signal(signal.SIGINT)
        assert server.process.stderr.readline() == "ksim: waiting for 1 request; Ctrl-C again drops them\n"
        assert len([*parts, *stream]) == 200
    assert server.process.wait() == 0


def test_a_second_ctrl_c_leaves_a_whole_run_behind(scenario, openai):
    server = Server(scenario, "--speed", "0.1", "-o", "served")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model=None, prompt="Hi", max_tokens=200, stream=True,
                                           extra_body={"ignore_eos": True})
        parts = [next(stream)]
        server.process.send_signal(signal.SIGINT)
        server.process.stderr.readline()
        server.process.send_signal(signal.SIGINT)
        with suppress(openai.APIConnectionError, httpx.TransportError):
            parts += stream
    assert server.process.wait() == 0 and len(parts) < 200
    (row,) = (scenario / "served" / "requests.jsonl").read_text().splitlines()
    assert json.loads(row)["output"] == 200 and json.loads(row)["aborted"] > 0
    assert pq.read_table(scenario / "served" / "requests.parquet")["output_tokens"].to_pylist() == [len(parts)]
    assert json.loads((scenario / "served" / "summary.json").read_text())["completed"] == 0
    assert ksim_here("run", "served/scenario.toml", "-o", "again", folder=scenario).status == 0


def test_a_port_in_use_is_named(scenario):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = ksim("serve", "scenario.toml", "--port", port, folder=scenario, code=1)
    assert said == f"ksim: --port: {port} is in use on localhost; choose another, or 0 for any free one\n"


@pytest.mark.parametrize(("words", "says"), [
    (["--speed", "0"], "--speed: must be above 0, not 0"),
    (["--max-body-size", "lots"], "--max-body-size: 'lots' is not a quantity"),
    (["--max-body-size", "5 s"], "--max-body-size: '5 s' is in s; expected B"),
    (["--max-body-size", "0"], "--max-body-size: must be from 1 byte to 1 TiB, not 0"),
    (["--host", "no.such.host.invalid"], "--host: 'no.such.host.invalid' is no host here"),
    (["--host", "203.0.113.7", "--port", "0"], "--host: 203.0.113.7 is no address of this machine"),
    (["--tokenizer", "nothing"], "--tokenizer: nothing is not there"),
    (["--uds", "scenario.toml"], "--uds: scenario.toml is there already"),
    (["--uds", "no/folder/socket"], "--uds: no/folder/socket No such file or directory"),
    (["--kv-events-config", "{"], "--kv-events-config: is no JSON"),
    (["--set", "model=nothing"], "no model named 'nothing'"),
])
def test_what_cannot_be_is_refused(scenario, words, says):
    outcome = ksim_here("serve", "scenario.toml", "--port", "0", *words, folder=scenario)
    assert outcome.status == 1
    assert outcome.stderr.startswith(f"ksim: {says}")


def test_without_its_libraries_it_says_what_to_install(scenario, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "ksim.server.serving", raising=False)
    assert ksim("serve", "scenario.toml", folder=scenario, code=1) == (
        "ksim: ksim serve needs Starlette and uvicorn: pip install 'ksim-llm[server]' (from a checkout: pip install -e"
        " '.[server]')\n")
