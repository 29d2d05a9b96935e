"""`python -m benchmarks.disconnects`: ten thousand clients that hang up on `ksim serve`, and what is left of them.

They go before the headers, in the middle of headers, of a body, of a prefill or of an answer, in good order or by a
reset; some send nonsense or too much.  What the server then says of itself is put beside what it said before.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter, sleep

from attrs import frozen

SCENARIO = """
model = "llama-3.1-8b"
gpu = "h100"
[workload.synthetic]
arrivals = {process = "burst"}
prompt = {kind = "fixed", value = 1}
output = {kind = "fixed", value = 1}
"""
#: What must be as it was.
TOLD = ("ksim:requests_in_flight", "vllm:num_requests_running", "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc", "process_open_fds", "process_resident_memory_bytes")
PATHS = ("/v1/completions", "/v1/chat/completions")


@frozen
class Socket:
    """A connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, port: int) -> "Socket":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def hang_up(self, reset: bool) -> None:
        """Close it, by a reset of the connection or in good order."""
        if reset:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                                            struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


def asked(drawn: random.Random) -> bytes:
    """A whole request for a stream."""
    path, words = drawn.choice(PATHS), "word " * drawn.choice((5, 100, 4000))
    prompt = {"messages": [{"role": "user", "content": words}]} if "chat" in path else {"prompt": words}
    return posted(path, json.dumps({**prompt, "max_tokens": 200, "stream": drawn.random() < 0.8}).encode())


def posted(path: str, body: bytes, length: int | None = None) -> bytes:
    """A POST of *body*, which may say that it has another *length*."""
    return (f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: "
            f"{len(body) if length is None else length}\r\n\r\n").encode() + body


async def at_once(line: Socket, drawn: random.Random) -> None:
    """Go before a word."""


async def in_the_headers(line: Socket, drawn: random.Random) -> None:
    line.writer.write(asked(drawn)[:drawn.randrange(90)])


async def in_the_body(line: Socket, drawn: random.Random) -> None:
    line.writer.write(asked(drawn)[:-drawn.randrange(1, 50)])


async def in_the_prefill(line: Socket, drawn: random.Random) -> None:
    line.writer.write(asked(drawn))
    await asyncio.sleep(drawn.random() * 0.02)


async def in_the_answer(line: Socket, drawn: random.Random) -> None:
    line.writer.write(asked(drawn))
    await line.reader.read(drawn.choice((1, 500, 5000)))


async def after_nonsense(line: Socket, drawn: random.Random) -> None:
    body = drawn.choice((b"{", b"[" * 20000, b"\xff", b'{"prompt": 7e999}', b'{"max_tokens": []}',
                         drawn.randbytes(300)))
    line.writer.write(drawn.choice((posted(drawn.choice(PATHS), body), drawn.randbytes(200), b"GET / HTTP/9\r\n\r\n")))
    await line.reader.read(100)


async def after_too_much(line: Socket, drawn: random.Random) -> None:
    line.writer.write(posted(PATHS[0], b" " * 100_000, 1 << 40))
    await line.reader.read(100)


async def without_reading(line: Socket, drawn: random.Random) -> None:
    line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    line.writer.write(asked(drawn))
    await asyncio.sleep(0.3)


KINDS: tuple[Callable[[Socket, random.Random], Awaitable[None]], ...] = (
    at_once, in_the_headers, in_the_body, in_the_prefill, in_the_prefill, in_the_answer, in_the_answer, after_nonsense,
    after_too_much, without_reading)


async def visit_all(port: int, visits: int, at_a_time: int, drawn: random.Random) -> Counter[str]:
    """Have so many clients come, and go."""
    done, slots = Counter[str](), asyncio.Semaphore(at_a_time)

    async def visit() -> None:
        async with slots:
            leave, reset = drawn.choice(KINDS), drawn.random() < 0.3
            line = await Socket.to(port)
            try:
                await asyncio.wait_for(leave(line, drawn), 30)
            except (ConnectionError, TimeoutError) as error:
                done[type(error).__name__] += 1
            line.hang_up(reset)
            done[leave.__name__] += 1

    await asyncio.gather(*(visit() for _ in range(visits)))
    return done


def told(port: int) -> Mapping[str, float]:
    """What the server says of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))
            for name in TOLD}


async def told_at_rest(port: int) -> Mapping[str, float]:
    """The same when no request is in flight any more."""
    while (now := await asyncio.to_thread(told, port))["ksim:requests_in_flight"]:
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)
    return now if now == told(port) else told(port)


async def compare(port: int, visits: int, at_a_time: int) -> None:
    """Print what there was before the visits, and what is left after each of three rounds of them."""
    drawn, rows = random.Random(0), list[Mapping[str, float]]()
    await visit_all(port, 200, at_a_time, drawn)  # makes what the first requests make
    rows.append(await told_at_rest(port))
    for _ in range(3):
        begun = perf_counter()
        done = await visit_all(port, visits // 3, at_a_time, drawn)
        rows.append(await told_at_rest(port))
        print(f"{sum(done.values())} in {perf_counter() - begun:.1f} s: {dict(done)}", flush=True)
    print("| | before | after 1/3 | after 2/3 | after all |\n|---|--:|--:|--:|--:|")
    for name in TOLD:
        print(f"| `{name}` | " + " | ".join(f"{row[name]:,.0f}" for row in rows) + " |")


def main() -> None:
    """Serve, and be visited."""
    parser = argparse.ArgumentParser("python -m benchmarks.disconnects", description=__doc__)
    parser.add_argument("--visits", type=int, default=10_000)
    parser.add_argument("--at-a-time", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "scenario.toml").write_text(SCENARIO)
        said = Path(folder) / "said.txt"
        with said.open("w") as stderr:
            server = subprocess.Popen([sys.executable, "-m", "ksim", "serve", f"{folder}/scenario.toml", "--port", "0"],
                                      stderr=stderr)
        try:
            while not (found := re.search(r"http://\S+:(\d+)", said.read_text())) and server.poll() is None:
                sleep(0.1)
            if found is not None:
                asyncio.run(compare(int(found[1]), options.visits, options.at_a_time))
        finally:
            server.send_signal(signal.SIGINT)
            print("it ended with", server.wait(), "and said", dict(Counter(said.read_text().splitlines())))


if __name__ == "__main__":
    main()
