"""`python -m benchmarks.clients`: real clients against `ksim serve`, and `ksim run` on the arrivals that they made.

Each client measures the time to first token (TTFT) and the time per output token (TPOT) on the wall clock.  The
requests that reached the server are then played again, without a clock, and the means are put side by side.  A client
that is not there is left out, and named.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_letters
from time import perf_counter, sleep
from typing import Any

from attrs import frozen

#: What is served: prefills of about 0.2 s, beside which a client's own milliseconds are small.
SCENARIO = """
model = "llama-3.1-70b"
gpu = "h100"
serve = {tensor_parallel_size = 4}
[workload.synthetic]
arrivals = {process = "burst"}
prompt = {kind = "fixed", value = 1}
output = {kind = "fixed", value = 1}
"""
MODEL = "llama-3.1-70b"
PROMPT, OUTPUT = 3000, 64
#: Relative differences that are the client's and the machine's, not the server's.
GOAL = 0.03
Means = Mapping[str, float]


@frozen
class Load:
    """How many `requests` a client sends, at what `rate` a second, to which address; it writes to a `folder`."""

    url: str
    requests: int
    rate: float
    folder: Path
    program: str = ""

    @property
    def tokenizer(self) -> str:
        return str(self.folder / "tokenizer")


# The clients.  TPOT is that of tokens after the first, as `vllm bench serve` and ksim have it.


def vllm(load: Load) -> Means:
    """`vllm bench serve`, from its own function: the whole command imports the server, too."""
    start = ("import argparse; from vllm.benchmarks.serve import add_cli_args, main;"
             " parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())")
    result = load.folder / "vllm.json"
    _run(load.program, "-c", start, "--backend", "openai", "--base-url", load.url, "--model", MODEL, "--tokenizer",
         load.tokenizer, "--dataset-name", "random", "--random-input-len", PROMPT, "--random-output-len", OUTPUT,
         "--num-prompts", load.requests, "--request-rate", load.rate, "--ignore-eos", "--save-result",
         "--result-filename", result)
    figures = json.loads(result.read_text())
    return {"ttft": figures["mean_ttft_ms"] / 1e3, "tpot": figures["mean_tpot_ms"] / 1e3}


def aiperf(load: Load) -> Means:
    """NVIDIA's AIPerf; its inter token latency is the mean over a request's tokens."""
    folder = load.folder / "aiperf"
    _run(load.program, "profile", "--model", MODEL, "--url", load.url, "--endpoint-type", "chat", "--streaming",
         "--tokenizer", load.tokenizer, "--synthetic-input-tokens-mean", PROMPT, "--synthetic-input-tokens-stddev", 0,
         "--output-tokens-mean", OUTPUT, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true",
         "--request-rate", load.rate, "--request-count", load.requests, "--artifact-dir", folder, "--ui", "none")
    figures = json.loads((folder / "profile_export_aiperf.json").read_text())
    return {"ttft": figures["time_to_first_token"]["avg"] / 1e3, "tpot": figures["inter_token_latency"]["avg"] / 1e3}


def guidellm(load: Load) -> Means:
    """vLLM's GuideLLM."""
    result = load.folder / "guidellm.json"
    _run(load.program, "run", "--backend", f"kind=openai_http,target={load.url},model={MODEL}",
         "--profile", f"kind=poisson,rate={load.rate}", "--constraint", f"kind=max_requests,count={load.requests}",
         "--tokenizer", f"kind=hf_auto,model={load.tokenizer}",
         "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
         "--output", f"kind=json,path={result}", "--disable-console")
    figures = json.loads(result.read_text())["benchmarks"][0]["metrics"]
    return {"ttft": figures["time_to_first_token_ms"]["successful"]["mean"] / 1e3,
            "tpot": figures["inter_token_latency_ms"]["successful"]["mean"] / 1e3}


def openai(load: Load) -> Means:
    """The `openai` package, with requests that come by a Poisson process."""
    return asyncio.run(_stream_all(load))


async def _stream_all(load: Load) -> Means:
    from openai import AsyncOpenAI

    drawn, tasks = random.Random(0), list[asyncio.Task[tuple[float, float]]]()
    async with AsyncOpenAI(base_url=f"{load.url}/v1", api_key="none") as client:
        await _stream(client, "w1")  # makes what the first request makes of the library
        for _ in range(load.requests):
            prompt = "".join(drawn.choices(ascii_letters, k=PROMPT))
            tasks.append(asyncio.create_task(_stream(client, prompt)))
            await asyncio.sleep(drawn.expovariate(load.rate))
        pairs = [await task for task in tasks]
    return {name: sum(column) / len(pairs) for name, column in zip(("ttft", "tpot"), zip(*pairs, strict=True),
                                                                   strict=True)}


async def _stream(client: Any, prompt: str) -> tuple[float, float]:
    """The TTFT and the TPOT of one request."""
    begun, times = perf_counter(), list[float]()
    stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=OUTPUT, stream=True,
                                             extra_body={"ignore_eos": True})
    async for chunk in stream:
        if chunk.choices:
            times.append(perf_counter())
    return times[0] - begun, (times[-1] - times[0]) / (OUTPUT - 1)


CLIENTS: Mapping[str, Callable[[Load], Means]] = {
    "openai": openai, "vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}


def _run(*words: object) -> None:
    """Run a client, with packages of its own; what it prints is shown if it fails."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, env=own)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-4000:])


# The server, and what it played.


def played(folder: Path) -> Mapping[str, Sequence[float]]:
    """The TTFT and the TPOT of each request in the run of a server's *folder*, which is played again, without a clock.
    """
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.simulate import simulate

    requests = simulate(Scenario.read(folder / "scenario.toml")).history.requests
    return {"ttft": requests.ttft.tolist(), "tpot": requests.tpot.tolist()}


def compare(name: str, folder: Path, options: argparse.Namespace, program: str) -> Iterator[str]:
    """The rows of one client."""
    said = folder / "said.txt"
    with said.open("w") as stderr:
        server = subprocess.Popen([
            sys.executable, "-m", "ksim", "serve", str(folder / "scenario.toml"), "--port", "0", "--speed",
            str(options.speed), "--tokenizer", str(folder / "tokenizer"), "-o", str(folder / "served")], stderr=stderr)
    while not (found := re.search(r"http://[^;\s]+", said.read_text())) and server.poll() is None:
        sleep(0.1)
    url = found[0] if found else ""
    try:
        measured = CLIENTS[name](Load(url, options.requests, options.rate * options.speed, folder, program))
    except RuntimeError as error:
        yield f"| {name} | failed: {str(error)[-options.words:]!r} |"
        return
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    ran = played(folder / "served")
    for figure in ("ttft", "tpot"):
        counted = ran[figure][-options.requests:]  # what came before tried whether the server is there
        theirs, ours = measured[figure], sum(counted) / len(counted) / options.speed
        off, missed = theirs / ours - 1, "" if abs(theirs / ours - 1) <= GOAL else " missed"
        yield (f"| {name} | {len(counted)} | {options.speed:g} | {figure.upper()} | {1e3 * theirs:.2f} |"
               f" {1e3 * ours:.2f} | {off:+.2%} | {1e3 * (theirs - ours):+.2f} |{missed} |")
    for late in re.findall(r".*late.*", said.read_text())[-1:]:
        print(late)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer, as Hugging Face's libraries read it: common words are tokens, and so is each character of others.

    Whatever text a client draws is as long for the server as for the client, and so are the server's answers.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    from ksim.server.text import COMMON

    folder.mkdir()
    tokens = ["<unk>", "</s>", *map(chr, range(32, 127)), *(word for word in COMMON if len(word) > 1),
              *(f" {word}" for word in COMMON)]
    made = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(rf" ?\b(?:{'|'.join(COMMON)})\b|."), "isolated")
    made.decoder = decoders.Fuse()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>",
        "model_max_length": 131072, "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}"}))


def main(words: Sequence[str]) -> None:
    """Compare the clients that are there."""
    options = _options(words)
    print("| client | requests | speed | figure | client (ms) | `ksim run` (ms) | off | ms | |\n"
          "|---|--:|--:|---|--:|--:|--:|--:|---|")
    for name in options.only or CLIENTS:
        program = getattr(options, name, None) or shutil.which(name) or ""
        if name != "openai" and not program:
            print(f"| {name} | is not installed: left out |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "scenario.toml").write_text(SCENARIO)
            write_tokenizer(Path(folder) / "tokenizer")
            for row in compare(name, Path(folder), options, program):
                print(row, flush=True)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--only", action="append", choices=CLIENTS)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=2.0, help="requests in a simulated second")
    parser.add_argument("--speed", type=float, default=1.0, help="simulated seconds in a second")
    parser.add_argument("--words", type=int, default=300, help="how much of a client's error is shown")
    parser.add_argument("--vllm", help="a Python that imports vllm.benchmarks")
    parser.add_argument("--guidellm", help="the program, where it is not on the PATH")
    parser.add_argument("--aiperf", help="the same of aiperf")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
