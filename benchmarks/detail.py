"""A run played kernel by kernel: CPU time of a step by how many GPUs share it, beside what it may take."""

import time

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.flow.events import Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import play

MODEL, GPU = "llama-3.1-70b", "h200"
WIDTHS = (1, 2, 4, 8)
GOALS = {8: Goal("detail = kernel on TP8: a step", 2.0, "CPU ms")}
#: Tokens that each of the requests writes, and how many come at once.
OUTPUT, REQUESTS = 200, 16


def findings() -> Findings:
    """Both details, by how many GPUs share a step."""
    found, yardstick = beside(lambda: {width: (_best(width, "kernel"), _best(width, "step")) for width in WIDTHS})
    rows = [(f"TP{width}", f"{fine:.3f}", f"{whole:.3f}") for width, (fine, whole) in found.items()]
    title = (f"CPU time of a step of {MODEL} on {GPU}s, {REQUESTS} requests, ms: best of 3;"
             f" {yardstick:.2f} us for an event of SimPy")
    return Findings([Sheet(title, ("ranks", "kernel by kernel", "whole steps"), rows)],
                    [goal.judged(found[width][0], yardstick) for width, goal in GOALS.items()])


def _best(width: int, detail: str) -> float:
    return min(milliseconds(width, detail) for _ in range(3))


def milliseconds(width: int, detail: str = "kernel") -> float:
    """CPU time of one step of *width* ranks, in milliseconds: a prefill, then decodes."""
    deployment = Deployment.of(_scenario(width, detail))
    requests = [Request(number, 0.0, 512, OUTPUT) for number in range(REQUESTS)]
    play(deployment, requests[:1])  # profiles are read when they are first needed
    begin = time.process_time()
    result = play(deployment, requests)
    seconds = time.process_time() - begin
    return 1e3 * seconds / sum(1 for _ in result.log.of(Stepped))


def _scenario(width: int, detail: str) -> Scenario:
    # In 16 bits, one GPU has no room for the weights.
    serve = {"tensor_parallel_size": width, "max_model_len": 4096, **({"quantization": "fp8"} if width == 1 else {})}
    return Scenario.of({"model": MODEL, "gpu": GPU, "serve": serve, "workload": ANY_WORKLOAD, "detail": detail})

