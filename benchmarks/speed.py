"""Whole runs: CPU time and memory of the commands that a user types, beside what peers take for the same."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.apart import Figures, best, measured, spent
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.workloads import scenarios
from benchmarks.yardstick import STANDARD, beside, scaled

#: On w5000_qps6.45 and w20000_qps6.45: requests, CPU seconds of simulation and of the whole program, us of simulation
#: per output token, and the peak in MB, measured where an event of SimPy takes 0.42 us (Python 3.11, AMD EPYC
#: 2.6 GHz); same model, GPU and limits.
PEERS: dict[str, tuple[float, float | None, float, float | None, float]] = {
    "w5000: Vidur 7d47513, sarathi": (5000, 3.6, 23.6, 3.4, 4400), "w5000: Vidur, vllm": (5000, 2.7, 22.5, 2.5, 4400),
    "w5000: BLIS f90a1e3 (Go)": (5000, None, 4.4, None, 165),
    "w5000: splitwise-sim 8f99e7d (70B, 8 H100)": (5000, 27.7, 29.2, 26, 181),
    "w20000: Vidur, sarathi": (20000, 15.1, 37.6, None, 4400), "w20000: Vidur, vllm": (20000, 10.4, 32.4, None, 4400),
    "w20000: BLIS (Go)": (20000, None, 17.7, None, 540),
}
#: How often the commands are run, of which the fastest counts.
TIMES = 2
COLUMNS = ("workload", "requests", "steps", "simulation s", "scaled", "--quiet s", "command s", "scaled", "ratio",
           "us/output token", "peak MB", "SimPy us/event")
#: What a figure of a workload may be.
GOALS = {
    "w5000_qps6.45": {"simulation": Goal("w5000_qps6.45: simulation", 0.35, "CPU s"),
                      "command": Goal("w5000_qps6.45: command with all that it writes", 1.5, "CPU s"),
                      "ratio": Goal("w5000_qps6.45: command over --quiet", 1.5, "times", timed=False),
                      "megabytes": Goal("w5000_qps6.45: peak", 250, "MB", timed=False)},
    **{name: {"simulation": Goal(f"{name}: simulation", 1.4, "CPU s")}
       for name in ("w20000_qps6.45", "w20000_qps25.8")},
    **{name: {"per second": Goal(f"{name}: simulation", 2000, "requests/CPU s", least=True)}
       for name in ("mooncake", "mooncake, 4 replicas", "mooncake, overload")},
    # A day of 1.7 million requests in half an hour.
    "autoscaled, 20/s": {"per second": Goal("autoscaled, 20/s: simulation", 960, "requests/CPU s", least=True)},
    "512 engines": {"per step": Goal("512 engines: simulation", 0.25, "CPU ms/step")},
    **{name: {"command": Goal(f"{name}: command with all that it writes", limit, "CPU s")}
       for name, limit in (("DeepSeek-V3, SGLang DP8", 5.0), ("DeepSeek-R1, wide EP on 40", 8.0))},
}


def findings() -> Findings:
    """Each workload, best of three, and the peers."""
    rows, judged = [], []
    for name, table in scenarios().items():
        figures, yardstick = beside(partial(_figures, name, table))
        rows.append(_row(name, figures, yardstick))
        judged += [goal.judged(figures[key], yardstick) for key, goal in GOALS.get(name, {}).items()]
    rows += [_peer(name, *row) for name, row in PEERS.items()]
    title = ("CPU time: simulation alone, `ksim run --quiet`, and `ksim run -o DIR` with plots, trace, tables and"
             f" report; scaled to {STANDARD} us for an event of SimPy")
    return Findings([Sheet(title, COLUMNS, rows)], judged)


def _figures(name: str, table: dict[str, Any]) -> Figures:
    """What workload *name* takes, whose scenario is *table*: the simulation, and what a user waits for."""
    simulated = best(partial(measured, "benchmarks.measure", name), "simulation")
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.toml"
        scenario.write_text(tomli_w.dumps(table), encoding="utf-8")
        command = ("-m", "ksim", "run", str(scenario))
        # One after the other, so that a machine that changes its pace does so for both.
        keeping = ("-o", str(Path(folder) / "run"), "--force")
        pairs = [(spent(*command, "--quiet"), spent(*command, *keeping)) for _ in range(TIMES)]
    quiet, whole = (min(found, key=lambda figures: figures["seconds"]) for found in zip(*pairs, strict=True))
    return {**simulated, "quiet": quiet["seconds"], "command": whole["seconds"], "megabytes": whole["megabytes"],
            "ratio": whole["seconds"] / quiet["seconds"], "per second": simulated["requests"] / simulated["simulation"],
            "per step": 1e3 * simulated["simulation"] / simulated["steps"]}


def _row(name: str, figures: Figures, yardstick: float) -> tuple[str, ...]:
    seconds, command = figures["simulation"], figures["command"]
    return (name, f"{figures['requests']:.0f}", f"{figures['steps']:.0f}", f"{seconds:.2f}",
            f"{scaled(seconds, yardstick):.2f}", f"{figures['quiet']:.2f}", f"{command:.2f}",
            f"{scaled(command, yardstick):.2f}", f"{figures['ratio']:.2f}", f"{1e6 * seconds / figures['tokens']:.2f}",
            f"{figures['megabytes']:.0f}", f"{yardstick:.2f}")


def _peer(name: str, requests: float, simulation: float | None, program: float, token: float | None,
          megabytes: float) -> tuple[str, ...]:
    taken = f"{simulation:.1f}" if simulation else "-"
    return (name, f"{requests:.0f}", "", taken, taken, "", f"{program:.1f}", f"{program:.1f}", "",
            f"{token:g}" if token else "", f"{megabytes:.0f}", f"{STANDARD:.2f}")
