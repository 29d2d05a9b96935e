"""Loads of one server, whose capacity queueing theory knows, and of an engine that batches."""

from collections.abc import Callable, Mapping
from math import exp, factorial
from pathlib import Path
from typing import Any

import numpy as np

from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate

_PARTS = {"client": ("accept", "travel", "travel_token", "deliver", "deliver_sequence"),
          "core": ("wake", "schedule", "schedule_sequence", "schedule_block", "update", "update_sequence", "send"),
          "worker": ("prepare", "prepare_sequence", "replay", "piece", "compiled", "eager", "experts"),
          "inputs": ("copy", "copy_sequence", "gap")}


def one_server(folder: Path, output: Mapping[str, Any]) -> Scenario:
    """An engine that serves one request at a time, without any time of a host, which is described in *folder*."""
    host = folder / "none.toml"
    host.write_text('name = "none"\nsource = "a test"\n' + "".join(
        f"[{part}]\n" + "".join(f"{name} = 0\n" for name in names) for part, names in _PARTS.items()))
    return Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h100", "host": str(host),
        "serve": {"max_model_len": 2048, "max_num_seqs": 1, "async_scheduling": False},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 1}, "count": 40, "output": output,
                                   "prompt": {"kind": "fixed", "value": 128}}}})


def services(scenario: Scenario) -> Floats:
    """Seconds in service of the requests of *scenario*, one after the other, in ascending order."""
    requests = simulate(scenario).history.requests
    return np.sort(requests.finished - requests.admitted)


def batching(**serve: Any) -> Scenario:
    """An engine that batches what comes."""
    return Scenario.of({
        "model": "llama-3.2-1b", "gpu": "l4", "serve": {"max_model_len": 2048, "max_num_seqs": 32, **serve},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 5}, "max_tokens": 2000,
                                   "prompt": {"kind": "lognormal", "median": 200, "sigma": 0.8},
                                   "output": {"kind": "lognormal", "median": 12, "sigma": 0.7}}}})


def root(excess: Callable[[float], float], most: float) -> float:
    """The rate below *most* from which on *excess* is positive."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return low


def waits_longer(load: float, limit: float) -> float:
    """Erlang's distribution of the wait in an M/D/1 queue, of a *limit* in services: the share beyond it."""
    within = (1 - load) * sum((load * (place - limit))**place / factorial(place) * exp(-load * (place - limit))
                              for place in range(int(limit) + 1))
    return 1 - within
