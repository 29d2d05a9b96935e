"""Routers that look at 32 engines, beside round robin: CPU time of a choice, and per step of a whole run.

`python -m benchmarks.routing ROUTER REQUESTS` measures one router, in a process of its own.
"""

import json
import sys
import time
from functools import partial
from itertools import cycle
from typing import Any

from benchmarks.apart import Figures, measured
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import STANDARD, beside, scaled

ROUTERS = ("round_robin", "least_outstanding", "prefix_aware", "llm_d")
#: Requests of a whole run, and choices that are timed.
REQUESTS, CHOICES = 50_000, 2000
COLUMNS = ("router", "us/choice", "scaled", "us noted", "steps", "simulation s", "us/step", "scaled", "SimPy us/event")
CHOICE = Goal("llm_d: a choice among 32 engines", 30, "us")
STEP = Goal("llm_d over round_robin: us/step", 1.5, "times", timed=False)


def scenario(router: str, requests: int) -> dict[str, Any]:
    """32 replicas whose metrics are scraped every 50 ms, and requests that share beginnings."""
    return {"model": "llama-3.1-8b", "gpu": "h200", "nodes": 4, "router": router, "serve": {"data_parallel_size": 32},
            "workload": {"synthetic": {
                "arrivals": {"process": "poisson", "rate": 300}, "count": requests,
                "prompt": {"kind": "uniform", "low": 200, "high": 4000},
                "output": {"kind": "uniform", "low": 20, "high": 400}, "prefixes": {"groups": 50, "tokens": 1000}}}}


def findings(requests: int = REQUESTS) -> Findings:
    """Each router once: a whole run takes minutes."""
    found = {router: beside(partial(measured, "benchmarks.routing", router, str(requests))) for router in ROUTERS}
    sheet = Sheet(f"{requests:,} requests on 32 engines, scraped every 50 ms; scaled to {STANDARD} us for an event of"
                  " SimPy", COLUMNS, [_row(router, *figures) for router, figures in found.items()])
    (plain, pace), (figures, yardstick) = found["round_robin"], found["llm_d"]
    ratio = scaled(_per_step(figures), yardstick) / scaled(_per_step(plain), pace)
    return Findings([sheet], [CHOICE.judged(figures["choice"], yardstick), STEP.judged(ratio, STANDARD)])


def _row(router: str, figures: Figures, yardstick: float) -> tuple[str, ...]:
    step, choice = _per_step(figures), figures["choice"]
    return (router, f"{choice:.1f}", f"{scaled(choice, yardstick):.1f}", f"{figures['noted']:.1f}",
            f"{figures['steps']:.0f}", f"{figures['simulation']:.1f}", f"{step:.1f}", f"{scaled(step, yardstick):.1f}",
            f"{yardstick:.2f}")


def _per_step(figures: Figures) -> float:
    """Microseconds of CPU for a step."""
    return 1e6 * figures["simulation"] / figures["steps"]


def measure(router: str, requests: int) -> Figures:
    """What a choice of *router* takes, what it takes to note it, and a whole run."""
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.simulate import simulate

    figures = _choices(router)
    begin = time.process_time()
    result = simulate(Scenario.of(scenario(router, requests)))
    figures["simulation"] = time.process_time() - begin
    return {**figures, "steps": float(sum(map(len, result.log.step_blocks)))}


def _choices(router: str) -> Figures:
    """The least microseconds of a choice, and of noting it for routing.parquet, on engines that are at rest."""
    from ksim.engine.loop_times import Horizon
    from ksim.flow.log import Log
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.assembly import build
    from ksim.simulation.fleet import Fleet

    made = Scenario.of(scenario(router, 400))
    (cluster,) = build(Fleet.of(made), Horizon(), Log(), lambda: None).parts
    requests, sight = cycle([*made.workload.requests(0)]), cluster.sight
    spent, moment = [], 0.0
    for _ in range(CHOICES):
        request, moment = next(requests), moment + 1 / 300
        begin = time.perf_counter()
        sight.look(request, moment)
        cluster.router.choose(request, sight.views, moment)
        chosen = time.perf_counter()
        if sight.tells:
            sight.seen(sight.views)
        spent.append((chosen - begin, time.perf_counter() - chosen))
    middle = [sorted(seconds)[CHOICES // 2] for seconds in zip(*spent, strict=True)]
    return {"choice": 1e6 * middle[0], "noted": 1e6 * middle[1]}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
