"""A run played rank by rank: CPU time of a step by how many GPUs share it, beside what it may take."""

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.flow.events import Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import play

MODEL, GPU = "llama-3.1-70b", "h200"
WIDTHS = (1, 2, 4, 8)
#: What a step of eight GPUs may cost: as much as a whole step and a fifth where they are alike.
GOALS = {"alike": Goal("TP8, ranks alike: a step, over that of detail = step", 1.2, "", timed=False),
         "unlike": Goal("TP8, eight unlike ranks: a step", 4.0, "CPU ms")}
#: Tokens that each of the requests writes, and how many come at once.
OUTPUT, REQUESTS = 200, 16


def details(width: int) -> Mapping[str, Mapping[str, Any]]:
    """What scenarios say of *width* ranks: whole steps, ranks that are alike, one that is slow, and all different."""
    return {"step": {}, "alike": {"detail": "rank"},
            "one slow": {"detail": "rank", "ranks": {"slow": [{"gpu": width - 1, "speed": 0.9}]}},
            "unlike": {"detail": "rank", "ranks": {"speed_spread": 0.02}}}


def findings() -> Findings:
    """All details, by how many GPUs share a step."""
    found, yardstick = beside(lambda: {width: {name: best(width, detail) for name, detail in details(width).items()}
                                       for width in WIDTHS})
    rows = [(f"TP{width}", *[f"{milliseconds:.3f}" for milliseconds in of.values()]) for width, of in found.items()]
    title = (f"CPU time of a step of {MODEL} on {GPU}s, {REQUESTS} requests, ms: best of 3;"
             f" {yardstick:.2f} us for an event of SimPy")
    eight = found[8]
    return Findings([Sheet(title, ("ranks", "whole steps", "alike", "one is slow", "all differ"), rows)],
                    [GOALS["alike"].judged(eight["alike"] / eight["step"], yardstick),
                     GOALS["unlike"].judged(eight["unlike"], yardstick)])


def best(width: int, detail: Mapping[str, Any]) -> float:
    """The least of three measurements."""
    return min(milliseconds(width, detail) for _ in range(3))


def milliseconds(width: int, detail: Mapping[str, Any]) -> float:
    """CPU time of one step of *width* ranks, in milliseconds: a prefill, then decodes."""
    deployment = Deployment.of(_scenario(width, detail))
    requests = [Request(number, 0.0, 512, OUTPUT) for number in range(REQUESTS)]
    play(deployment, requests[:1])  # profiles are read when they are first needed
    begin = time.process_time()
    result = play(deployment, requests)
    seconds = time.process_time() - begin
    return 1e3 * seconds / sum(1 for _ in result.log.of(Stepped))


def _scenario(width: int, detail: Mapping[str, Any]) -> Scenario:
    # In 16 bits, one GPU has no room for the weights.
    serve = {"tensor_parallel_size": width, "max_model_len": 4096, **({"quantization": "fp8"} if width == 1 else {})}
    return Scenario.of({"model": MODEL, "gpu": GPU, "serve": serve, "workload": ANY_WORKLOAD, **detail})
