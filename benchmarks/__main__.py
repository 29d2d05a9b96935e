"""`python -m benchmarks`: measure every workload and print a table."""

import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.oracles import GOALS, ORACLES, figures
from benchmarks.scheduler import VLLM, microseconds
from benchmarks.workloads import scenarios
from benchmarks.yardstick import events_per_second

#: CPU seconds of simulation and of the whole program on w5000_qps6.45, measured on a machine whose bare heap loop
#: made 5.0 to 5.8 million events a CPU second (Python 3.11, AMD EPYC 2.6 GHz); same model, GPU and limits.
PEERS = {
    "Vidur 7d47513, sarathi": (3.6, 23.6), "Vidur, vllm": (2.7, 22.5), "BLIS f90a1e3 (Go)": (None, 4.4),
    "splitwise-sim 8f99e7d (70B, 8 H100)": (27.7, 29.2),
}


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"yardstick: a bare heapq loop makes {events_per_second() / 1e6:.2f} million events per CPU second")
    table = Table(title="CPU time of this process; program = simulation, kernel breakdown and all files but plots",
                  title_justify="left")
    for column in ("workload", "requests", "steps", "simulation s", "program s", "requests/s", "steps/s",
                   "us/output token", "peak MB"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name in scenarios():
        table.add_row(name, *_row(_measured(name)))
    for peer, (simulation, program) in PEERS.items():
        table.add_row(f"[dim]w5000: {peer}[/]", "5000", "", *(f"{x:.1f}" if x else "-" for x in (simulation, program)),
                      f"{5000 / simulation:.0f}" if simulation else "-", "", "", "")
    console.print(table)
    console.print(_scheduler())
    console.print(_oracles())


def _scheduler() -> Table:
    """The scheduler alone, beside vLLM's own."""
    table = Table(title="The scheduler alone, us of CPU a step: best of 3", title_justify="left")
    for column in ("load", "running", "waiting", "KV blocks", "ksim", "vLLM 0.33", "ratio"):
        table.add_column(column, justify="left" if column == "load" else "right")
    for (load, running), theirs in VLLM.items():
        ours = min(microseconds(load, running) for _ in range(3))
        table.add_row(load, str(running), "0", "32768", f"{ours:.1f}", f"{theirs:.0f}", f"{theirs / ours:.1f}")
    for waiting, blocks in ((10, 32768), (10_000, 32768), (1_000_000, 32768), (0, 8192), (0, 1 << 20)):
        ours = min(microseconds("decode", 64, 300, waiting, blocks) for _ in range(3))
        table.add_row("decode", "64", str(waiting), str(blocks), f"{ours:.1f}", "", "")
    return table


def _oracles() -> Table:
    """The oracles alone, beside what they may take."""
    found = {oracle: figures(oracle) for oracle in ORACLES}
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    table = Table(title="CPU time of the oracles, on a step of llama-3.1-70b, one rank of eight H200s",
                  title_justify="left")
    for column in ("oracle", *columns):
        table.add_column(column, justify="left" if column == "oracle" else "right")
    for oracle, row in found.items():
        table.add_row(oracle, *(f"{row[column]:.3g}" if column in row else "" for column in columns))
    table.add_row("[dim]goal[/]", *(f"{GOALS[column]:.3g}" if column in GOALS else "" for column in columns))
    return table


def _measured(name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.measure", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _row(figures: dict[str, float]) -> tuple[str, ...]:
    seconds = figures["simulation"]
    return (f"{figures['requests']:.0f}", f"{figures['steps']:.0f}", f"{seconds:.2f}", f"{figures['program']:.2f}",
            f"{figures['requests'] / seconds:.0f}", f"{figures['steps'] / seconds:.0f}",
            f"{1e6 * seconds / figures['tokens']:.2f}", f"{figures['megabytes']:.0f}")


if __name__ == "__main__":
    main()
