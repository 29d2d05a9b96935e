"""How often intervals hold the truth, and what common random numbers save: short forms of benchmarks/capacity_*.py."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks import capacity_crn
from ksim.results.series import drifted
from ksim.study.capacity.judge import highest_rate
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Criteria, Observation, RateRun, TargetSample, grows
from ksim.study.plan import replication_seed
from tests.study.capacity.loads import batching, root, waits_longer

COUNT = 1000


class Queue:
    """Workers that play an M/D/1 queue with a service of 1 s, by Lindley's recursion."""

    count = 1

    def run(self, work: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return ((place, self.played(work.args[0], item) if isinstance(item, RateRun) else 1.0)
                for place, item in enumerate(items))

    def played(self, plan: Criteria, trial: RateRun) -> Observation:
        rng = np.random.default_rng(replication_seed(plan.seed, trial.replication))
        gaps = rng.exponential(1.0, COUNT - 1) / trial.rate
        arrival, walk = (np.concatenate([[0.0], np.cumsum(steps)]) for steps in (gaps, 1 - gaps))
        wait = walk - np.minimum.accumulate(walk)
        queue = np.arange(1.0, COUNT + 1) - np.searchsorted(arrival + wait, arrival, side="right")
        if any(grows(queue[:until]) for until in range(100, COUNT, 50)):
            return Observation(trial.rate, trial.replication, saturated=True, hopeless="it grew")
        late = (wait > plan.targets[0].limit).astype(float)
        return Observation(trial.rate, trial.replication, samples=[TargetSample(late, np.ones(COUNT), wait, COUNT)],
                           good=late < 1, numbers={"gpus": 1.0}, saturated=bool(drifted(queue)))


def test_intervals_hold_the_capacity_in_nine_of_ten_studies():
    """As theory has it, of 40 studies of the same queue."""
    share, limit = 0.95, 5.0
    truth = root(lambda load: waits_longer(load, limit) - (1 - share), 1.0)
    target, held, rates = Target("queue", f"p{100 * share:g}", limit), 0, []
    for seed in range(40):
        answer = highest_rate(batching(), Criteria((target,), COUNT, model_errors=False, seed=seed), Queue())
        held += truth in answer.interval
        rates.append(answer.rate)
    assert held >= 36
    assert np.mean(rates) == pytest.approx(truth, rel=0.03)


def test_common_random_numbers_tell_set_ups_apart():
    (goal,) = capacity_crn.findings(3, (20.0,), jobs=1).judged
    assert float(goal[2]) > 5
