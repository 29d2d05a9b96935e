"""A run played rank by rank: what a step takes in CPU time, SimPy events and memory, beside what it may take.

`python -m benchmarks.detail wide` prints what 96 ranks take, as JSON: in a process of its own, for the memory.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from benchmarks.apart import best, measured, peak_megabytes
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.flow.events import RanksMet, Stepped
from ksim.flow.request import Request
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import Running, play

MODEL, GPU = "llama-3.1-70b", "h200"
WIDTHS = (1, 2, 4, 8)
#: What a step of eight GPUs may cost: as much as a whole step and a fifth where they are alike; and one of 96.
GOALS = {"alike": Goal("TP8, ranks alike: a step, over that of detail = step", 1.2, "", timed=False),
         "unlike": Goal("TP8, eight unlike ranks: a step", 4.0, "CPU ms"),
         "wide": Goal("96 ranks, drawn experts: a step", 60.0, "CPU ms"),
         "memory": Goal("96 ranks, drawn experts: peak", 1000.0, "MB", timed=False)}
#: Tokens that each of the requests writes, and how many come at once.
OUTPUT, REQUESTS = 200, 16
#: 96 H100 that share the experts of DeepSeek-V3: 58 layers, whose rows are drawn; and what their requests are.
WIDE: Mapping[str, Any] = {
    "model": "deepseek-v3", "system": "hgx-h100", "nodes": 12, "detail": "rank", "workload": ANY_WORKLOAD,
    "serve": {"data_parallel_size": 96, "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency",
              "enable_eplb": True, "num_redundant_experts": 32, "max_model_len": 4096}}
WIDE_OUTPUT, WIDE_REQUESTS = 150, 8 * 96


@frozen
class Step:
    """What a step takes on average: CPU time in milliseconds, and events of SimPy."""

    milliseconds: float
    events: float


def details(width: int) -> Mapping[str, Mapping[str, Any]]:
    """What scenarios say of *width* ranks: whole steps, ranks that are alike, one that is slow, and all different."""
    return {"step": {}, "alike": {"detail": "rank"},
            "one slow": {"detail": "rank", "ranks": {"slow": [{"gpu": width - 1, "speed": 0.9}]}},
            "unlike": {"detail": "rank", "ranks": {"speed_spread": 0.02}}}


def findings() -> Findings:
    """All details, by how many GPUs share a step."""
    (found, wide), yardstick = beside(lambda: (
        {width: {name: quickest(width, detail) for name, detail in details(width).items()} for width in WIDTHS},
        best(lambda: measured("benchmarks.detail", "wide"), "seconds")))
    said = f"{yardstick:.2f} us for an event of SimPy"
    columns = ("ranks", "whole steps", "alike", "one is slow", "all differ")
    eight = found[8]
    return Findings(
        [Sheet(f"CPU time of a step of {MODEL} on {GPU}s, {REQUESTS} requests, ms: best of 3; {said}", columns,
               [(f"TP{width}", *[f"{step.milliseconds:.3f}" for step in of.values()]) for width, of in found.items()]),
         Sheet("Events of SimPy in such a step", columns,
               [(f"TP{width}", *[f"{step.events:,.1f}" for step in of.values()]) for width, of in found.items()]),
         Sheet(f"A step of deepseek-v3 on 96 h100s, {WIDE_REQUESTS} requests, experts drawn in 58 layers; {said}",
               ("ranks", "steps", "CPU ms", "events of SimPy", "peak MB"),
               [("DP96", *[f"{wide[key]:,.{digits}f}" for key, digits in (
                   ("steps", 0), ("milliseconds", 1), ("events", 0), ("megabytes", 0))])])],
        [GOALS["alike"].judged(eight["alike"].milliseconds / eight["step"].milliseconds, yardstick),
         GOALS["unlike"].judged(eight["unlike"].milliseconds, yardstick),
         GOALS["wide"].judged(wide["milliseconds"], yardstick), GOALS["memory"].judged(wide["megabytes"], yardstick)])


def quickest(width: int, detail: Mapping[str, Any]) -> Step:
    """The quickest of three measurements."""
    return min((step_of(width, detail) for _ in range(3)), key=lambda step: step.milliseconds)


def step_of(width: int, detail: Mapping[str, Any]) -> Step:
    """A step of *width* ranks: a prefill, then decodes."""
    deployment = Deployment.of(_scenario(width, detail))
    requests = [Request(number, 0.0, 512, OUTPUT) for number in range(REQUESTS)]
    play(deployment, requests[:1])  # profiles are read when they are first needed
    seconds, events, steps = _played(deployment, requests, Stepped)
    return Step(1e3 * seconds / steps, events / steps)


def wide() -> Mapping[str, float]:
    """A step of all 96 ranks together, and the most memory that this process has held."""
    deployment = Deployment.of(Scenario.of(dict(WIDE)))
    requests = [Request(number, 0.0, 512, WIDE_OUTPUT) for number in range(WIDE_REQUESTS)]
    play(deployment, requests[:1])
    seconds, events, steps = _played(deployment, requests, RanksMet)
    return {"seconds": seconds, "steps": steps, "milliseconds": 1e3 * seconds / steps, "events": events / steps,
            "megabytes": peak_megabytes()}


def _played(deployment: Deployment, requests: list[Request], step: type[Stepped] | type[RanksMet]
            ) -> tuple[float, int, int]:
    """CPU seconds, events of SimPy and steps of a run."""
    runs: list[Running] = []
    begin = time.process_time()
    result = play(deployment, requests, begin=runs.append)
    seconds = time.process_time() - begin
    return seconds, next(runs[0].coming.env._eid), sum(1 for _ in result.log.of(step))


def _scenario(width: int, detail: Mapping[str, Any]) -> Scenario:
    # In 16 bits, one GPU has no room for the weights.
    serve = {"tensor_parallel_size": width, "max_model_len": 4096, **({"quantization": "fp8"} if width == 1 else {})}
    return Scenario.of({"model": MODEL, "gpu": GPU, "serve": serve, "workload": ANY_WORKLOAD, **detail})


if __name__ == "__main__":
    print(json.dumps({"wide": wide}[sys.argv[1]]()))
