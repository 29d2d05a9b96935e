"""The gate for speed: lines of Python that small workloads take, held against budgets that are committed.

`python -m benchmarks.gate` prints both, and with `--renew` writes the budgets anew.  Seconds have no part in it.
"""

import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from attrs import frozen

from benchmarks.counting import lines, peak
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream
from ksim.views.result import Result

BUDGETS = Path("tests/speed_budgets.toml")
#: A count may be so many times its budget: other versions of Python and of libraries count a little differently.
TOLERANCE = 1.15

Table = dict[str, Any]


@frozen
class Workload:
    """A scenario, and what its lines are counted by: a key of the summary."""

    scenario: Table
    per: str = "total_output_tokens"

    def run(self) -> Result:
        """Simulate it and work out the summary."""
        result = simulate(Scenario.of(self.scenario))
        assert result.summary
        return result

    def count(self) -> float:
        """Lines for each of what they are counted by, profiles having been read and kernels priced."""
        units: float = self.run().summary[self.per]
        return lines(self.run) / units

    def larger(self, times: int) -> "Workload":
        """So many times as many requests of the same kind."""
        synthetic = self.scenario["workload"]["synthetic"]
        workload = {"synthetic": {**synthetic, "count": synthetic["count"] * times}}
        return Workload({**self.scenario, "workload": workload}, self.per)

    def peak(self) -> int:
        """The most bytes that it holds where it is streamed."""
        with tempfile.TemporaryDirectory() as folder:
            return peak(partial(stream, Scenario.of(self.scenario), Path(folder) / "run"))


def workloads() -> dict[str, Workload]:
    """By the names of their budgets."""
    short, few = _between(64, 192), _between(5, 15)
    return {
        "decode-heavy": Workload(_table(rate=40.0, prompt=short, output=_between(20, 80))),
        "prefill-heavy": Workload(_table(rate=6.0, prompt=_between(2000, 6000), output=_between(1, 3)), "steps"),
        "prefix-heavy": Workload(_table(rate=40.0, prompt=_between(100, 600), output=few,
                                        prefixes={"groups": 8, "tokens": 2048}), "completed"),
        "saturated": Workload(_table(rate=500.0, prompt=_between(200, 600), output=_between(10, 40),
                                     serve={"max_num_seqs": 32, "num_gpu_blocks_override": 700}), "steps"),
        "fleet": Workload({**_table(count=200, rate=100.0, prompt=short, output=_between(100, 200),
                                    serve={"data_parallel_size": 32}, clients=10_000),
                           "router": "least_outstanding", "nodes": 4}),
        "rank by rank, TP8": Workload(_table(count=20, prompt=short, output=few, slow=[{"gpu": 3, "speed": 0.9}],
                                             serve={"tensor_parallel_size": 8}), "steps"),
    }


def steady() -> Workload:
    """Equal requests that come as fast as they go, in a cache that is soon full: more of them are more of the same."""
    return Workload(_table(count=150, rate=60.0, prompt=_between(128, 128), output=_between(8, 8),
                           serve={"num_gpu_blocks_override": 500}))


def batch(running: int) -> float:
    """Lines of one more step of so many requests that all decode, at a clock for which the power limit is no matter."""
    short, long = (Workload(_table(count=running, rate=1e6, prompt=_between(128, 128), output=_between(output, output),
                                   power={"clock": "1200 MHz"})) for output in (200, 456))
    steps: int = long.run().summary["steps"] - short.run().summary["steps"]
    return (lines(long.run) - lines(short.run)) / steps


def _table(count: int = 300, rate: float = 8.0, serve: Mapping[str, Any] | None = None,
           slow: Sequence[Mapping[str, Any]] = (), power: Mapping[str, Any] | None = None, clients: int | None = None,
           **parts: Any) -> Table:
    synthetic = {"count": count, "arrivals": {"process": "poisson", "rate": rate}, **parts}
    clients_table = {"max_concurrency": clients} if clients else {}
    ranks = {"detail": "rank", "ranks": {"slow": slow}} if slow else {}
    return {"model": "llama-3.1-8b", "gpu": "h200", **ranks, "workload": {"synthetic": synthetic, **clients_table},
            "serve": {"max_model_len": 16384, **(serve or {})}, "power": power or {}}


def _between(low: int, high: int) -> Table:
    return {"kind": "uniform", "low": low, "high": high}


def budgets() -> dict[str, Table]:
    """What is committed, by workload: `lines`, and what they are `per`."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def _renew(found: Mapping[str, float]) -> None:
    table = {name: {"lines": round(found[name], 3), "per": workload.per} for name, workload in workloads().items()}
    head = ("# Lines of Python that the workloads of benchmarks/gate.py take, for each of what they are counted by.\n"
            f"# tests/test_speed_gate.py allows {TOLERANCE} times as many; `python -m benchmarks.gate --renew` writes"
            " them anew.\n")
    BUDGETS.write_text(f"{head}\n{tomli_w.dumps(table)}", encoding="utf-8")


def main() -> None:
    """Count, print, and write the budgets where that is asked for."""
    found = {name: workload.count() for name, workload in workloads().items()}
    if "--renew" in sys.argv[1:]:
        _renew(found)
    for name, budget in budgets().items():
        print(f"{name:24}{found[name]:10.2f} lines of {budget['lines']:10.2f} for each of {budget['per']}")


if __name__ == "__main__":
    main()
