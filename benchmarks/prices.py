"""Prices that runs share: runs without them, the first to write them, later ones; and the price of one kernel."""

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.apart import Figures, best, measured
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside

QUICKSTART = "quickstart"
WORKLOADS = (QUICKSTART, "decode-heavy", "prefill-heavy", "mooncake, overload")
#: What a run may take, over one without the file: the first, which writes it, and another, which reads it.
RATIOS = {"first": 1.1, "later": 1.02}
#: CPU time of a kernel whose price is known from the file.
KNOWN = Goal("kernel, known", 12.0, "CPU us")
TOKENS = 1000


def findings() -> Findings:
    """Whole runs, and single kernels."""
    rows, judged = [], []
    for name in WORKLOADS:
        figures, yardstick = beside(partial(_runs, name))
        rows.append((name, *(f"{figures[kind]:.2f}" for kind in ("without", "first", "later")),
                     f"{yardstick:.2f}"))
        judged += [Goal(f"{name}: {kind} run", limit, "x without", timed=False).judged(
            figures[kind] / figures["without"], yardstick) for kind, limit in RATIOS.items()]
    kernels, yardstick = beside(partial(best, kernel, "known"))
    judged.append(KNOWN.judged(kernels["known"], yardstick))
    runs = Sheet("CPU seconds of simulation without shared prices, as the first run of all, and as a later one",
                 ("workload", "without", "first", "later", "SimPy us/event"), rows)
    single = Sheet(f"CPU time of a kernel's price, nine or so in a question; {yardstick:.2f} us for an event of SimPy",
                   ("price", "us"), [(what, f"{us:.1f}") for what, us in kernels.items()])
    return Findings([runs, single], judged)


def _runs(name: str) -> Figures:
    """CPU seconds of *name* without a file, with a new one and with one that is known, the best of three each."""
    def run(folder: str) -> Figures:
        return measured("benchmarks.prices", name, folder)

    def first() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            return run(folder)

    with tempfile.TemporaryDirectory() as folder:
        run(folder)
        kinds = {"without": partial(run, "off"), "first": first, "later": partial(run, folder)}
        return {kind: best(measure, "seconds")["seconds"] for kind, measure in kinds.items()}


def _run(name: str, folder: str) -> Figures:
    """CPU seconds of workload *name* in this process, with prices in *folder*."""
    from benchmarks.workloads import scenarios
    from ksim.foundation.folders import VARIABLE
    from ksim.simulation.scenario import Scenario
    from ksim.simulation.simulate import simulate

    os.environ[VARIABLE] = folder
    scenario = (Scenario.read(Path("scenarios/quickstart.toml")) if name == QUICKSTART
                else Scenario.of(scenarios()[name], name))
    begin = time.process_time()
    simulate(scenario)
    return {"seconds": time.process_time() - begin}


def kernel() -> Figures:
    """CPU microseconds of a kernel of Llama 3.1 8B on an H200: priced, priced and written, and read."""
    from ksim.compute.graph import Collective
    from ksim.cost.remembering.remembered import Remembered
    from ksim.foundation.config import Choice
    from ksim.oracles import estimates
    from ksim.simulation.lookup import gpu_of, model_of, plugin
    from ksim.specs.deployment import Shard

    model, gpu, oracle = model_of("llama-3.1-8b"), gpu_of("h200"), plugin("oracles", Choice("measured"))
    questions = [[op.kernel for op in dict.fromkeys(op for block in model.body(tokens, Shard()) for op in block.ops)
                  if hasattr(op.kernel, "work") and not isinstance(op.kernel, Collective)]
                 for tokens in range(1, TOKENS)]
    count = sum(map(len, questions))

    def took(asked: object) -> float:
        begin = time.process_time()
        for question in questions:
            estimates(asked, question, gpu)
        if isinstance(asked, Remembered):
            asked.close()
        return (time.process_time() - begin) / count * 1e6

    estimates(oracle, questions[0], gpu)  # profiles are read when they are first needed
    with tempfile.TemporaryDirectory() as folder:
        return {"priced": took(oracle), "priced and written": took(Remembered(oracle, Path(folder))),
                "known": took(Remembered(oracle, Path(folder)))}


if __name__ == "__main__":
    print(json.dumps(_run(*sys.argv[1:])))
