"""A log is data: another process reads it that can import nothing of what priced it."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from ksim.views.perfetto import write_trace
from ksim.views.result import Result

#: What results may not need: packages that price.
BLOCKED = ("ksim.compute", "ksim.cost", "ksim.network", "ksim.oracles", "ksim.engine", "ksim.simulation")

READER = f"""
import pickle, sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith({BLOCKED!r}):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
from tests.views.test_pickled_log import judged
for number, result in enumerate(pickle.load(open(sys.argv[1], "rb"))):
    print(judged(result, sys.argv[2] + str(number)))
"""


def judged(result: Result, trace: str | Path) -> str:
    """All that results say of a run; its trace is written beside."""
    write_trace(result.history, Path(trace))
    tables = [table.to_pylist() for table in (result.kernels, result.attribution, result.requests, result.steps)]
    return json.dumps([result.summary, [str(insight) for insight in result.insights], *tables], default=repr)


#: What is read: logs of engines alone, of ranks that differ, of data ranks, and of a fleet.
CHANGES: list[dict[str, Any]] = [
    {}, {"detail": "rank", "ranks": {"slow": [{"gpu": 1, "speed": 0.9}]},
         "serve": {"tensor_parallel_size": 2, "max_model_len": 4096}},
    {"model": "qwen3-30b-a3b", "serve": {"data_parallel_size": 2, "max_model_len": 4096}},
    {"pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "replicas": 2}}},
]


def test_pickled_logs_are_read_without_what_priced_them(tmp_path):
    scenario = {"model": "llama-3.2-1b", "gpu": "h200", "serve": {"max_model_len": 4096}, "workload": {"synthetic": {
        "arrivals": {"process": "poisson", "rate": 50}, "count": 20, "max_tokens": 4000,
        "prompt": {"kind": "lognormal", "median": 300, "sigma": 0.5},
        "output": {"kind": "uniform", "low": 1, "high": 40}}}}
    from ksim.scenario.scenario import Scenario  # here, as the other process cannot import them
    from ksim.simulation.simulate import simulate

    results = []
    for changes in CHANGES:
        ran = simulate(Scenario.of({**scenario, **changes}))
        assert ran.history.fleet == ("pools" in changes) == bool(ran.history.links)
        results.append(Result(ran.log))
    (tmp_path / "logs").write_bytes(pickle.dumps(results))
    read = subprocess.run([sys.executable, "-c", READER, tmp_path / "logs", tmp_path / "theirs"], check=True,
                          capture_output=True, text=True)
    for number, (result, line) in enumerate(zip(results, read.stdout.splitlines(), strict=True)):
        assert line == judged(result, tmp_path / "ours")
        assert (tmp_path / f"theirs{number}").read_bytes() == (tmp_path / "ours").read_bytes()
