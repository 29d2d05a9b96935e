"""Whole runs: CPU time and memory of the workloads, beside what peers take for the same."""

from functools import partial

from benchmarks.apart import Figures, best, measured
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.workloads import scenarios
from benchmarks.yardstick import STANDARD, beside

#: On w5000_qps6.45 and w20000_qps6.45: requests, CPU seconds of simulation and of the whole program, us of simulation
#: per output token, and the peak in MB, measured where the yardstick makes 5.0 to 5.8 million events a CPU second
#: (Python 3.11, AMD EPYC 2.6 GHz); same model, GPU and limits.
PEERS: dict[str, tuple[float, float | None, float, float | None, float]] = {
    "w5000: Vidur 7d47513, sarathi": (5000, 3.6, 23.6, 3.4, 4400), "w5000: Vidur, vllm": (5000, 2.7, 22.5, 2.5, 4400),
    "w5000: BLIS f90a1e3 (Go)": (5000, None, 4.4, None, 165),
    "w5000: splitwise-sim 8f99e7d (70B, 8 H100)": (5000, 27.7, 29.2, 26, 181),
    "w20000: Vidur, sarathi": (20000, 15.1, 37.6, None, 4400), "w20000: Vidur, vllm": (20000, 10.4, 32.4, None, 4400),
    "w20000: BLIS (Go)": (20000, None, 17.7, None, 540),
}
COLUMNS = ("workload", "requests", "steps", "simulation s", "scaled", "program s", "requests/s", "us/step",
           "us/output token", "peak MB", "yardstick, M/s")
#: What a figure of a workload may be.
GOALS = {
    "w5000_qps6.45": {"simulation": Goal("w5000_qps6.45: simulation", 0.35, "CPU s"),
                      "program": Goal("w5000_qps6.45: whole program", 1.5, "CPU s"),
                      "megabytes": Goal("w5000_qps6.45: peak", 250, "MB", timed=False)},
    **{name: {"simulation": Goal(f"{name}: simulation", 1.4, "CPU s")}
       for name in ("w20000_qps6.45", "w20000_qps25.8")},
    **{name: {"per second": Goal(f"{name}: simulation", 2000, "requests/CPU s", least=True)}
       for name in ("mooncake", "mooncake, 4 replicas", "mooncake, overload")},
}


def findings() -> Findings:
    """Each workload, best of three, and the peers."""
    rows, judged = [], []
    for name in scenarios():
        figures, yardstick = beside(partial(best, partial(measured, "benchmarks.measure", name), "simulation"))
        figures["per second"] = figures["requests"] / figures["simulation"]
        rows.append(_row(name, figures, yardstick))
        judged += [goal.judged(figures[key], yardstick) for key, goal in GOALS.get(name, {}).items()]
    rows += [_peer(name, *row) for name, row in PEERS.items()]
    title = ("CPU time of a process; program = simulation, kernel breakdown and all files but plots;"
             f" scaled to a yardstick of {STANDARD / 1e6:g} M/s")
    return Findings([Sheet(title, COLUMNS, rows)], judged)


def _row(name: str, figures: Figures, yardstick: float) -> tuple[str, ...]:
    seconds = figures["simulation"]
    return (name, f"{figures['requests']:.0f}", f"{figures['steps']:.0f}", f"{seconds:.2f}",
            f"{seconds * yardstick / STANDARD:.2f}", f"{figures['program']:.2f}", f"{figures['per second']:.0f}",
            f"{1e6 * seconds / figures['steps']:.1f}", f"{1e6 * seconds / figures['tokens']:.2f}",
            f"{figures['megabytes']:.0f}", f"{yardstick / 1e6:.2f}")


def _peer(name: str, requests: float, simulation: float | None, program: float, token: float | None,
          megabytes: float) -> tuple[str, ...]:
    taken, rate = (f"{simulation:.1f}", f"{requests / simulation:.0f}") if simulation else ("-", "-")
    return (name, f"{requests:.0f}", "", taken, taken, f"{program:.1f}", rate, "", f"{token:g}" if token else "",
            f"{megabytes:.0f}", f"{STANDARD / 1e6:.2f}")
