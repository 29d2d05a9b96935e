"""How often the interval of a capacity holds the capacity: that of a run a hundred times as long."""

import time
from functools import partial

import numpy as np
from attrs import evolve, frozen

from benchmarks.capacity_loads import BATCHED, ONE, Load
from benchmarks.findings import Findings, Goal, Sheet
from ksim.study.capacity.judge import highest_rate
from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import crossing, level
from ksim.study.capacity.trial import Criteria, RateRun, observe
from ksim.study.workers import InProcess, RunWorkers, Where

LOADS = (ONE, BATCHED)
SEEDS, LONGER = 100, 100
#: The seed of long runs, which no study has; how far around a first guess they look for the capacity, and how closely.
APART, AROUND, STEPS = 10**6, 1.12, 9
GOAL = Goal("least of the loads: intervals of 100 that hold the capacity", 90, "", least=True, timed=False)


@frozen
class Asked:
    """What a study with one seed answers: the rate, its interval, and CPU seconds."""

    rate: float
    low: float
    high: float
    seconds: float

    def holds(self, rate: float) -> bool:
        return self.low <= rate <= self.high


def findings(seeds: int = SEEDS, longer: int = LONGER) -> Findings:
    """For each load, studies with so many *seeds*, and a run so many times *longer* than theirs."""
    with Where().workers() as pool:
        rows = [_row(load, pool, seeds, longer) for load in LOADS]
    sheet = Sheet(f"Intervals (95 %) of {seeds} seeds, beside the answer of a run {longer} times as long",
                  ("load", "target", "requests/s", "within", "too high", "too low", "half-width", "mean answer",
                   "CPU s each"), [row for row, _ in rows])
    return Findings([sheet], [GOAL.judged(100 * min(held for _, held in rows), 1.0)])


def _row(load: Load, pool: RunWorkers, seeds: int, longer: int) -> tuple[list[str], float]:
    asked = studies(load, pool, range(seeds))
    truth = long_answer(load, float(np.median([one.rate for one in asked])), longer, pool)
    held = np.mean([one.holds(truth) for one in asked])
    shares = (held, np.mean([one.low > truth for one in asked]), np.mean([one.high < truth for one in asked]))
    width = np.median([np.log(one.high / one.low) / 2 for one in asked])
    rate, seconds = (float(np.mean([getattr(one, name) for one in asked])) for name in ("rate", "seconds"))
    return [load.name, load.target, f"{truth:.2f}", *(f"{100 * share:.0f} %" for share in shares),
            f"{100 * width:.1f} %", f"{rate:.2f}", f"{seconds:.1f}"], float(held)


def studies(load: Load, pool: RunWorkers, seeds: range) -> list[Asked]:
    """What studies of *load* with these *seeds* answer."""
    return [asked for _, asked in sorted(pool.run(partial(study, load), seeds))]


def study(load: Load, seed: int) -> Asked:
    """What a study of *load* with this *seed* answers."""
    begun = time.process_time()
    plan = Criteria(load.targets, load.requests, model_errors=False, seed=seed)
    answer = highest_rate(load.scenario, plan, InProcess())
    return Asked(answer.rate, answer.traffic.low, answer.traffic.high, time.process_time() - begun)


def long_answer(load: Load, near: float, longer: int, pool: RunWorkers) -> float:
    """The highest rate that one long run finds; rates around *near* are tried."""
    rates = np.geomspace(near / AROUND, near * AROUND, STEPS).tolist()
    levels = [found for _, found in sorted(pool.run(partial(_long_level, load, longer), rates))]
    rate = crossing(rates, levels)
    assert rate is not None, f"the capacity of {load.name} is not near {near:g}"
    return rate


def _long_level(load: Load, longer: int, rate: float) -> float:
    plan = Criteria(load.targets, load.requests * longer, seed=APART)
    seen = observe(plan, RateRun(load.scenario, rate, 0))
    return level(RatePoint.of(plan, [evolve(seen, saturated=False)]).multiples[load.targets[0]][0])

