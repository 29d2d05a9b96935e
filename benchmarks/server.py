"""`python -m benchmarks.server [--streams 1000] [--engines 64] [--rate 20]`: how late the tokens of `ksim serve` leave.

The server has one core, a client that reads all streams has another.  Each engine decodes its share of the streams as
one batch, at so many tokens a second and stream.  A token is late by the time from when the simulation gives it to its
user to when the client has read it; both look at one clock.
"""

import argparse
import json
import multiprocessing
import os
import select
import socket
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

import numpy as np
from attrs import frozen

from ksim.flow.events import Arrived, Emitted, Stepped
from ksim.flow.request import Request
from ksim.scenario.scenario import Scenario
from ksim.server import serving
from ksim.server.http.streams import Address
from ksim.server.live import Live
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play

SCENARIO = Path("scenarios/quickstart.toml")
#: Streams that begin in a second, and seconds after the last one from which on tokens count.
COMING, SETTLED = 100.0, 2.0


@frozen
class Load:
    """So many `streams`, each of so many `tokens` at `rate` tokens/s, of so many `engines`."""

    streams: int
    engines: int
    rate: float
    tokens: int

    @property
    def fleet(self) -> Fleet:
        """The engines, which have room for all streams at once."""
        changes = {"serve.data_parallel_size": self.engines, "serve.max_num_seqs": self.streams,
                   "nodes": -(-self.engines // 8)}
        return Fleet.of(Scenario.read(SCENARIO).with_values(changes))

    def speed(self) -> float:
        """Simulated seconds in a second with which each stream gets its rate."""
        alone = Load(self.streams // self.engines, 1, self.rate, self.tokens)
        requests = [Request(number, 0.0, 20, self.tokens) for number in range(alone.streams)]
        return float(play(alone.fleet, requests).summary["median_tpot_ms"]) * 1e-3 * self.rate


class _Told:
    """When the simulation gave which tokens to users, by the streams' numbers, and what that took of the CPU."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.names: dict[int, int] = {}
        self.steps: dict[tuple[int, int], float] = {}
        self.runs: list[Emitted] = []
        self.cpu = process_time()
        live.log.subscribe(Arrived, lambda event: self.names.update({
            event.request.id: int(event.request.tenant or -1)}))
        live.log.subscribe(Stepped, lambda event: self.steps.update({(event.engine, event.index): event.time}))
        live.log.subscribe(Emitted, self.runs.append)

    def moments(self) -> dict[int, list[float]]:
        """When each stream's tokens were due, by the clock."""
        begun, speed = self.live._begun or 0.0, self.live.speed
        told: dict[int, list[float]] = defaultdict(list)
        for run in self.runs:
            told[self.names[run.request_id]] += [begun + self.steps[run.engine, step] / speed
                                                 for step in range(run.first, run.last + 1, run.every)]
        return told


def _serve(load: Load, port: int, answers: Connection) -> None:
    """Serve on the first core until a signal comes; then say when tokens were due."""
    _alone_on(min(os.sched_getaffinity(0)))
    told: list[_Told] = []

    def say(text: str) -> None:
        told.append(_Told(_LIVES[-1]))
        answers.send("ready")

    settings = serving.ServerSettings(Address(port=port), speed=load.speed())
    serving.Live = _noted  # type: ignore[attr-defined,assignment]
    serving.serve(lambda: load.fleet, settings, say)
    cpu, lateness = process_time() - told[0].cpu, told[0].live.lateness
    answers.send((told[0].moments(), lateness.tokens, lateness.late, cpu))


def _alone_on(core: int) -> None:
    """Stay on *core*, before all others where that is allowed."""
    os.sched_setaffinity(0, {core})
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


_LIVES: list[Live] = []


def _noted(*parts: Any, **more: Any) -> Live:
    _LIVES.append(Live(*parts, **more))
    return _LIVES[-1]


def _read(load: Load, port: int) -> dict[int, list[float]]:
    """Ask for all streams; return when the tokens of each were read."""
    _alone_on(max(os.sched_getaffinity(0)))
    poll, sockets = select.epoll(), dict[int, tuple[int, socket.socket]]()
    coming, begun, rested = list(range(load.streams)), monotonic(), 0.0
    read, left = defaultdict[int, list[float]](list), load.streams
    while left:
        while coming and monotonic() - begun >= (load.streams - len(coming)) / COMING:
            number, connection = coming.pop(0), socket.create_connection(("127.0.0.1", port))
            connection.sendall(_question(number, load.tokens))
            sockets[connection.fileno()] = number, connection
            poll.register(connection.fileno(), select.EPOLLIN)
        if (clock := perf_counter()) > rested + 5e-3:  # Linux has who takes a core whole stop for 50 ms a second
            sleep(4e-4)
            rested = clock
        for place, _ in poll.poll(0):  # seldom asleep: to wake it would cost the server time
            number, connection = sockets[place]
            data, now = connection.recv(1 << 16), perf_counter()
            read[number] += [now] * data.count(b'"text":')
            if not data or b"[DONE]" in data:
                poll.unregister(place)
                connection.close()
                left -= 1
    return read


def _question(number: int, tokens: int) -> bytes:
    body = json.dumps({"model": "llama-3.1-8b", "prompt": f"tell me the story number {number} of a long winter",
                       "max_tokens": tokens, "ignore_eos": True, "stream": True, "user": str(number)}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body


def measure(load: Load, port: int) -> dict[str, float]:
    """Milliseconds that tokens are late, percentile by percentile, once all streams decode."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(load, port, there))
    server.start()
    assert here.recv() == "ready" and server.pid, "the server starts"
    sleep(1.0)
    begun = monotonic()
    read = _read(load, port)
    seconds = monotonic() - begun
    os.kill(server.pid, 2)
    due, tokens, late, cpu = here.recv()
    server.join()
    begin, end = max(moments[0] for moments in due.values()), min(moments[-1] for moments in due.values())
    lateness = 1e3 * np.array([got - moment for number, moments in due.items()
                               for got, moment in zip(read[number], moments, strict=True)
                               if begin + SETTLED < moment < end])  # meanwhile all decode
    at = np.percentile(lateness, [50, 90, 99, 100])
    return {"engines": load.engines, "tokens": len(lateness), "p50_ms": at[0], "p90_ms": at[1], "p99_ms": at[2],
            "most_ms": at[3], "within_5_ms": float((lateness <= 5.0).mean()), "cpu": cpu / seconds,
            "server_says_late": late / tokens}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--streams", type=int, default=1000)
    asked.add_argument("--engines", type=int, nargs="+", default=[1, 8, 64])
    asked.add_argument("--rate", type=float, default=20.0)
    asked.add_argument("--tokens", type=int, default=500)
    options = asked.parse_args()
    for place, engines in enumerate(options.engines):
        load = Load(options.streams, engines, options.rate, options.tokens)
        print(", ".join(f"{name} {value:.4g}" for name, value in measure(load, 8230 + place).items()), flush=True)


if __name__ == "__main__":
    main()
