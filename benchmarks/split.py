"""Requests that are split between engines, beside the same requests on replicas: CPU time per step of an engine."""

from functools import partial

from benchmarks.apart import Figures, best, measured
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.workloads import fleets
from benchmarks.yardstick import STANDARD, beside, scaled

COLUMNS = ("workload", "requests", "steps", "simulation s", "scaled", "us/step", "scaled", "SimPy us/event")
TIMES = Goal("4 prefill and 4 decode engines over 8 replicas: us/step", 1.3, "times", timed=False)


def findings() -> Findings:
    """Each fleet, best of three; nothing where the trace is not at hand."""
    found = {name: beside(partial(best, partial(measured, "benchmarks.measure", name), "simulation"))
             for name in fleets()}
    title = f"Mooncake's conversations on eight engines; scaled to {STANDARD} us for an event of SimPy"
    sheet = Sheet(title, COLUMNS, [_row(name, *figures) for name, figures in found.items()])
    if not found:
        return Findings([sheet])
    plain, split = (scaled(_per_step(figures), yardstick) for figures, yardstick in found.values())
    return Findings([sheet], [TIMES.judged(split / plain, STANDARD)])


def _row(name: str, figures: Figures, yardstick: float) -> tuple[str, ...]:
    seconds, step = figures["simulation"], _per_step(figures)
    return (name, f"{figures['requests']:.0f}", f"{figures['steps']:.0f}", f"{seconds:.2f}",
            f"{scaled(seconds, yardstick):.2f}", f"{step:.2f}", f"{scaled(step, yardstick):.2f}", f"{yardstick:.2f}")


def _per_step(figures: Figures) -> float:
    """Microseconds of CPU for a step."""
    return 1e6 * figures["simulation"] / figures["steps"]
