"""Common random numbers: how much less two set-ups differ by chance if they see the same traffic."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.capacity_loads import BATCHED, FEWER, Load
from benchmarks.findings import Findings, Goal, Sheet
from ksim.results.steps import Floats
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Criteria, RateRun, observe
from ksim.study.workers import RunWorkers, Where

REPLICATIONS = 60
#: Requests/s: lightly loaded, and close to the capacity of the smaller set-up.
RATES = (20.0, 35.0)
GOAL = Goal("variance of the difference, independent over common seeds: the least", 5, "times", least=True, timed=False)


def findings(replications: int = REPLICATIONS, rates: Sequence[float] = RATES, jobs: int | None = None) -> Findings:
    """The difference in mean latencies of engines of 32 and of 24 sequences."""
    rows, ratios = [], []
    with Where(jobs).workers() as pool:
        for rate in rates:
            one, common, apart = (values(load, rate, first, replications, pool)
                                  for load, first in ((BATCHED, 0), (FEWER, 0), (FEWER, replications)))
            for place, name in enumerate(("TTFT", "TPOT", "E2EL")):
                alike, unlike = (np.var(one[:, place] - other[:, place], ddof=1) for other in (common, apart))
                ratios.append(float(unlike / alike))
                rows.append([f"{name} at {rate:g} requests/s", f"{1e3 * np.mean(common[:, place] - one[:, place]):.2f}",
                             f"{1e3 * unlike**0.5:.3f}", f"{1e3 * alike**0.5:.3f}", f"{ratios[-1]:.0f}"])
    sheet = Sheet(f"Engines of 32 and of 24 sequences: difference in mean latency, over {replications} replications",
                  ("mean of", "difference, ms", "standard deviation, independent seeds", "common random numbers",
                   "variance ratio"), rows)
    return Findings([sheet], [GOAL.judged(min(ratios), 1.0)])


def values(load: Load, rate: float, first: int, count: int, pool: RunWorkers) -> Floats:
    """Mean TTFT, TPOT and E2EL of so many replications, from the *first* on: (replications, latencies)."""
    trials = [RateRun(load.scenario, rate, first + number) for number in range(count)]
    found = sorted(pool.run(partial(_means, load.requests), trials), key=lambda pair: pair[0])
    return np.array([means for _, means in found])


def _means(requests: int, trial: RateRun) -> list[float]:
    plan = Criteria(tuple(Target(metric, "mean", 1e3) for metric in ("ttft", "tpot", "e2el")), requests)
    return [float(np.nanmean(sample.value)) for sample in observe(plan, trial).samples]
